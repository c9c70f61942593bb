/*
 * Process-wide state and fork (rules F1-F5).
 *
 * A page that the kernel wipes in every child holds the process token and the pointers to this
 * process's cells: after a fork they read as NULL, whoever made the child, so that no child ever
 * counts in its parent's row. Views that are alive at a fork get a row of the child's own, made by
 * the parent before the fork.
 */
#include "fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "block.h"
#include "error.h"
#include "lockfile.h"
#include "os.h"
#include "row.h"
#include "share.h"

#define PROCESS_POLL_NS UINT64_C(100000)
#define FORK_PAGE_POINTERS (SVI_PAGE / sizeof(svi_cells_pointer))

/* One wiped page: element 0 of the first page is the token, the others are handed to mappings. */
typedef struct fork_page {
    svi_cells_pointer *pointers;
    size_t used;
} fork_page;

static pthread_mutex_t process_mutex = PTHREAD_MUTEX_INITIALIZER;
/* Writers first, or a fork would wait for as long as threads gather. Never entered twice. */
static pthread_rwlock_t process_gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static svi_mapping *process_list;
static fork_page process_page;
/* A word in a wiped page: NULL in a child that was not repaired, else &svi_process_number (or, while
 * one thread repairs, &process_repairing). Whoever sees the place sees the word in it: it is filled
 * before its address is released, or another thread of the first call would take itself for a child. */
typedef _Atomic(svi_word *) process_token;
static _Atomic(process_token *) process_token_home;
static svi_word process_repairing;
svi_word svi_process_number; /* not wiped; the child adds one */
static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static bool process_handlers;

/* A lock for reading and writing knows its writer by thread id, and the child's is another one. */
static void
process_reset_gate(void)
{
    process_gate = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

/* What a child does first, under the process lock: its rows are those made for it, or none. */
static void
fork_adopt(bool handlers_ran)
{
    svi_lockfile_forked(handlers_ran); /* a raw clone may share our parent's descriptors */
    for (svi_mapping *m = process_list; m != NULL; m = m->next) {
        if (m->busy) { /* F5: a thread of the parent was at work on it */
            m->probe = handlers_ran ? m->probe : -1;
            svi_mapping_abandon(m);
        }
        if (!m->mapped) {
            continue;
        }
        /* The parent's row is not mapped here (MADV_DONTFORK): its address may meanwhile belong to
         * somebody else and must not be touched. */
        m->hold = (svi_hold){.row = SVI_NO_ROW};
        m->owner = false;
        svi_block_unlist(m); /* the names are the parent's (B4) */
        svi_store_relaxed(&m->reservations, 0);
        svi_store_relaxed(&m->looking, 0); /* relaxed: the threads that did are the parent's */
        if (m->prefaulted != NULL) {       /* the pages were the parent's */
            memset(m->prefaulted, 0, m->g.buffer_count * sizeof *m->prefaulted);
        }
        if (handlers_ran && m->child.row != SVI_NO_ROW) {
            (void)svi_os_pass_to_children(m->child.anchor, m->g.row_stride, false);
            m->hold = m->child;
            svi_row_open(m);
            svi_row_show_handles(m);
            svi_row_sign(m->hold.map, false); /* it still names the parent */
            SVI_STEP("fork.adopted");
        } else {
            m->views_since = svi_load_relaxed(&svi_process_number);
            /* B5, F3: what the parent's views show is mapped here too, and they go on showing it
             * unless nothing holds it. */
            m->stays = m->stays || !handlers_ran || m->keeping || m->sharing;
            if (!handlers_ran || !m->stays) {
                m->shown_since = m->views_since;
            }
        }
        svi_share_forget(m);
        m->child = (svi_hold){.row = SVI_NO_ROW};
        m->keeping = false;
    }
}

/* Copy the pins of a used group of cells; the child has used the same groups as the parent. */
static void
fork_copy_pins(svi_mapping *m, uint32_t group)
{
    svi_row_clear(m, m->child.map, group);
    for (uint32_t b = group * SVI_CELL_GROUP; b < svi_cell_group_end(m, group); b++) {
        /* relaxed: own pins (F2) */
        uint64_t pins = svi_cell_pins(svi_load_relaxed(&m->hold.map->r_cells[b])) - m->left[b];
        if (pins != 0) {
            svi_add_seq(&m->child.map->r_cells[b], pins * SVI_PIN); /* E9 */
        }
    }
}

/* Make a row for the coming child and copy the pins of the views into it (rule F2). */
static void
fork_hand_over(svi_mapping *m)
{
    unsigned char *rw = NULL;
    int status = svi_row_take(m, -1, SVI_ROW_INHERIT, &m->child, NULL);
    if (status == 0 && svi_writable_borrow(m, &rw, NULL) != 0) {
        svi_row_drop(m, &m->child);
        status = SV_ENOMEM;
    }
    if (status != 0) {
        m->child = (svi_hold){.row = SVI_NO_ROW};
        m->keeping = svi_block_keep(m); /* nobody refills a block: the child may go on looking */
        if (!m->keeping) {
            svi_share_begin(m);
        }
        return;
    }
    for (uint32_t group = 0; group < svi_cell_groups(m); group++) {
        if (svi_cells_are_clean(m, group * SVI_CELL_GROUP)) {
            fork_copy_pins(m, group);
        }
    }
    SVI_STEP("fork.copied");
    svi_add_seq(&svi_header_at(rw)->h_moves,
                1); /* E9: after the copies, before the parent unpins */
    SVI_STEP("fork.moved");
    svi_writable_return(m, rw);
}

static svi_word *
process_word(void)
{
    /* acquire: what the place was filled with, and what a repair did, comes with its address */
    process_token *home = atomic_load_explicit(&process_token_home, memory_order_acquire);
    return home == NULL ? &svi_process_number : atomic_load_explicit(home, memory_order_acquire);
}

/* A child made by a raw clone: the handlers did not run, and the locks may have been held by threads
 * that do not exist here. One of its threads mends that, the others wait until it has. */
static void
process_repair(void)
{
    process_token *home = atomic_load_explicit(&process_token_home, memory_order_acquire);
    svi_word *unrepaired = NULL;
    if (!atomic_compare_exchange_strong_explicit(home, &unrepaired, &process_repairing,
                                                 memory_order_acquire, memory_order_acquire)) {
        while (atomic_load_explicit(home, memory_order_acquire) == &process_repairing) {
            svi_os_sleep_ns(PROCESS_POLL_NS);
        }
        return;
    }
    (void)pthread_mutex_init(&process_mutex, NULL);
    process_reset_gate();
    svi_add_relaxed(&svi_process_number, 1);
    fork_adopt(false);
    /* release: whoever sees the token finds the locks and the mappings mended */
    atomic_store_explicit(home, &svi_process_number, memory_order_release);
}

/* The first thing that every entry does. */
static void
process_mend(void)
{
    if (__builtin_expect(process_word() != &svi_process_number, 0)) {
        process_repair(); /* the parent's row is not mapped here */
    }
}

static void
fork_prepare(void)
{
    process_mend();
    (void)pthread_rwlock_wrlock(&process_gate);
    (void)pthread_mutex_lock(&process_mutex);
    for (svi_mapping *m = process_list; m != NULL; m = m->next) {
        m->child = (svi_hold){.row = SVI_NO_ROW};
        m->keeping = false;
        if (m->mapped) {
            svi_share_settle(m);
        }
        if (m->mapped && m->hold.row != SVI_NO_ROW && svi_row_own_pins(m) != 0) {
            fork_hand_over(m);
        }
    }
}

static void
fork_parent(void)
{
    for (svi_mapping *m = process_list; m != NULL; m = m->next) {
        if (m->sharing) {
            svi_share_part(m);
        }
        if (m->child.row != SVI_NO_ROW) {
            /* The child's copy of the map keeps the lock alive. */
            svi_os_unmap(m->child.anchor, m->g.row_stride);
            SVI_STEP("fork.released");
            m->child = (svi_hold){.row = SVI_NO_ROW};
        }
    }
    (void)pthread_mutex_unlock(&process_mutex);
    (void)pthread_rwlock_unlock(&process_gate);
}

static void
fork_child(void)
{
    for (svi_mapping *m = process_list; m != NULL; m = m->next) {
        if (m->sharing) {
            static const char text[] =
                "sharedvector: no row could be had for a forked child that inherits views; it goes "
                "on reading them, and they stay pinned until it ends, but it cannot take new ones "
                "(raise max_rows or processes, or look whether the file system is full)\n";
            ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
            (void)ignored;
            break;
        }
    }
    svi_add_relaxed(&svi_process_number, 1);
    process_token *home = atomic_load_explicit(&process_token_home, memory_order_relaxed);
    if (home != NULL) { /* relaxed: the child has this one thread */
        atomic_store_explicit(home, &svi_process_number, memory_order_relaxed);
    }
    fork_adopt(true);
    (void)pthread_mutex_unlock(&process_mutex);
    process_reset_gate();
}

/* Before anything is locked for the first time: a child that was forked in between would find the
 * process lock held by a thread that it does not have. */
static void
process_register(void)
{
    process_handlers = pthread_atfork(fork_prepare, fork_parent, fork_child) == 0;
}

static int
process_prepare_locked(sv_error *err)
{
    if (!process_handlers) {
        process_register(); /* once more: memory may have come back */
    }
    if (!process_handlers) {
        return svi_fail(err, SV_ENOMEM, 0, "prepare process",
                        "the fork handlers cannot be registered");
    }
    if (atomic_load_explicit(&process_token_home, memory_order_relaxed) != NULL) { /* locked */
        return 0;
    }
    void *page = NULL;
    if (sysconf(_SC_PAGESIZE) != (long)SVI_PAGE) {
        return svi_fail(err, SV_EUNSUPPORTED, 0, "prepare process",
                        "pages of memory have %ld bytes here, format %d.%d needs %u",
                        sysconf(_SC_PAGESIZE), SV_FORMAT_MAJOR, SV_FORMAT_MINOR, SVI_PAGE);
    }
    int status = svi_os_map_wipe_on_fork(SVI_PAGE, &page);
    if (status != 0) {
        return svi_fail(err, status == -ENOMEM ? SV_ENOMEM : SV_EUNSUPPORTED, -status,
                        "prepare process",
                        "memory that is wiped in forked children (MADV_WIPEONFORK, Linux 4.14) "
                        "cannot be had");
    }
    process_page.pointers = page;
    process_page.used = 1;
    svi_store_relaxed(&svi_process_number, 1);
    atomic_store_explicit(&process_page.pointers[0], &svi_process_number, memory_order_relaxed);
    /* release: the token before its place, see process_word() */
    atomic_store_explicit(&process_token_home, &process_page.pointers[0], memory_order_release);
    return 0;
}

int
svi_process_lock(sv_error *err)
{
    process_mend();
    (void)pthread_once(&process_once, process_register);
    (void)pthread_mutex_lock(&process_mutex);
    int status = process_prepare_locked(err);
    if (status != 0) {
        (void)pthread_mutex_unlock(&process_mutex);
    }
    return status;
}

void
svi_process_unlock(void)
{
    (void)pthread_mutex_unlock(&process_mutex);
}

uint64_t
svi_process_token(void)
{
    process_mend();
    return svi_load_relaxed(&svi_process_number);
}

void
svi_gate_enter(void)
{
    process_mend();
    (void)pthread_rwlock_rdlock(&process_gate);
}

void
svi_gate_leave(void)
{
    (void)pthread_rwlock_unlock(&process_gate);
}

svi_mapping *
svi_process_mappings(void)
{
    return process_list;
}

svi_mapping *
svi_mapping_obtain(void)
{
    for (svi_mapping *m = process_list; m != NULL; m = m->next) {
        if (!m->mapped && !m->busy && m->handles == 0 &&
            !m->stays) { /* views may name one that stays */
            svi_mapping *next = m->next;
            svi_cells_pointer *cells = m->cells;
            /* Not memset: a late reader may still look at `closing` (rule V3). */
            m->g = (svi_geometry){.chunk_size = 0};
            m->ro = NULL;
            atomic_store_explicit(&m->rw, NULL, memory_order_relaxed);
            m->next = next;
            m->cells = cells;
            m->views_since = svi_load_relaxed(&svi_process_number);
            m->shown_since = m->views_since;
            m->owner = false;
            m->sharing = false;
            m->left_for_good = false;
            svi_store_relaxed(&m->left_pins, 0); /* relaxed: process lock */
            m->keeping = false;
            m->hold = (svi_hold){.row = SVI_NO_ROW};
            m->child = (svi_hold){.row = SVI_NO_ROW};
            svi_store_relaxed(&m->rows_seen, 0);
            svi_store_relaxed(&m->reservations, 0);
            svi_store_relaxed(&m->closing, 0); /* relaxed: settle decides (V3) */
            /* Not `looking`: a late look may still be on its way out. */
            m->probe = -1;
            return m;
        }
    }
    if (process_page.used == FORK_PAGE_POINTERS) {
        void *page = NULL;
        if (svi_os_map_wipe_on_fork(SVI_PAGE, &page) != 0) {
            return NULL;
        }
        process_page.pointers = page;
        process_page.used = 0;
    }
    svi_mapping *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    m->views_since = svi_load_relaxed(&svi_process_number);
    m->shown_since = m->views_since;
    m->cells = &process_page.pointers[process_page.used++];
    m->hold.row = SVI_NO_ROW;
    m->child.row = SVI_NO_ROW;
    m->probe = -1;
    m->next = process_list;
    process_list = m;
    return m;
}
