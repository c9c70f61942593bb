/*
 * FileMap: part of a file that the page cache holds, as memory, where losing it ends nobody.
 *
 * Who touches a mapped page that is no longer in the file (somebody cut it short), or that cannot be
 * read, gets SIGBUS. The handler here puts zeros in the place of such pages of a FileMap, notes that
 * they are lost, and the decoder that met them goes on to an error or to a result that nobody may
 * use: `whole` is False then. systemd reads its journals in this way. A process says that it wants
 * the handler; in one that did not, nothing is mapped.
 */
#include "ext.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAPS 64 /* at one time, of one process: a decoding thread has one */

/* A place for a map. Its turn goes from FREE (0 modulo 3) to CLAIMED by who fills the rest in, to OPEN,
 * and on to the next FREE: the same turn before and after a look says that the look was at one map.
 * Maps that are open at the same time do not overlap, and what a thread is touching is open. */
enum { FREE = 0, CLAIMED = 1, OPEN = 2, TURNS = 3 };
static struct {
    atomic_ulong turn;
    atomic_uintptr_t begin;
    atomic_uintptr_t end;
    atomic_int lost;
} maps[MAPS];

static struct sigaction fallback; /* what stood before ours, and page_bytes: written once */
static uintptr_t page_bytes;

typedef struct {
    PyObject_HEAD size_t place;
    char *base; /* of the map: NULL until there is one */
    size_t mapped;
    const char *data;
    size_t bytes;
} FileMapObject;

/* ---- what is lost -------------------------------------------------------------------------- */

/* Zeros from the page of `address` to the end of its map. 0 when no map of ours has it. */
static int
map_lose(uintptr_t address)
{
    for (size_t i = 0; i < MAPS; i++) {
        unsigned long turn = atomic_load(&maps[i].turn);
        uintptr_t begin = atomic_load(&maps[i].begin);
        uintptr_t end = atomic_load(&maps[i].end);
        if (turn % TURNS == OPEN && atomic_load(&maps[i].turn) == turn && address >= begin &&
            address < end) {
            char *page = (char *)begin + (address - begin) / page_bytes * page_bytes;
            atomic_store(&maps[i].lost, 1);
            return mmap(page, end - (uintptr_t)page, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
        }
    }
    return 0;
}

/* What is not ours goes to who stood there before. Without anybody a fault repeats itself and ends the
 * process, and what was sent is sent again. */
static void
map_pass_on(int number, siginfo_t *info, void *context, int fault)
{
    if ((fallback.sa_flags & SA_SIGINFO) != 0) {
        fallback.sa_sigaction(number, info, context);
    } else if (fallback.sa_handler != SIG_DFL && fallback.sa_handler != SIG_IGN) {
        fallback.sa_handler(number);
    } else if (fault || fallback.sa_handler == SIG_DFL) {
        (void)sigaction(SIGBUS, &fallback, NULL);
        if (!fault) {
            (void)raise(number);
        }
    }
}

static void
map_bus_error(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    /* Else somebody sent it, or it is about memory that nobody touches: there is nothing to repeat. */
    int fault = info->si_code > 0 && info->si_code != BUS_MCEERR_AO;
    if (!fault || !map_lose((uintptr_t)info->si_addr)) {
        map_pass_on(number, info, context, fault);
    }
    errno = kept;
}

/* Whether the handler is the process's still, as others may have set theirs, and this thread's: a fault
 * while the signal is blocked is the end. */
static int
map_is_guarded(void)
{
    struct sigaction now;
    sigset_t blocked;
    return sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
           now.sa_sigaction == map_bus_error && pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 &&
           !sigismember(&blocked, SIGBUS);
}

/* Once: a handler that came later and calls the one before it would be called by ours in turn. Whoever
 * comes second waits for the first: it will touch maps as soon as this returns. */
PyObject *
module_guard_file_maps(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int done = 0;
    struct sigaction ours;
    memset(&ours, 0, sizeof(ours));
    ours.sa_sigaction = map_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    (void)sigemptyset(&ours.sa_mask);
    (void)pthread_mutex_lock(&mutex);
    if (!done) {
        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
        done = sigaction(SIGBUS, NULL, &fallback) == 0 && sigaction(SIGBUS, &ours, NULL) == 0;
    }
    int good = done;
    (void)pthread_mutex_unlock(&mutex);
    if (!good) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* ---- map ----------------------------------------------------------------------------------- */

/* Whether the page cache has the first, the middle and the last byte. A file that has to come from a
 * disk or over a network is read faster than mapped, and file systems that cannot tell say no. */
static int
map_is_cached(int fd, off_t offset, size_t bytes)
{
    const size_t places[] = {0, bytes / 2, bytes - 1};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char byte;
        struct iovec piece = {&byte, 1};
        if (preadv2(fd, &piece, 1, offset + (off_t)places[i], RWF_NOWAIT) != 1) {
            return 0;
        }
    }
    return 1;
}

/* An index of maps[], claimed; MAPS when all are taken. */
static size_t
map_claim(void)
{
    for (size_t i = 0; i < MAPS; i++) {
        unsigned long turn = atomic_load(&maps[i].turn);
        if (turn % TURNS == FREE &&
            atomic_compare_exchange_strong(&maps[i].turn, &turn, turn + 1)) {
            return i;
        }
    }
    return MAPS;
}

/* 0, without an exception, when the bytes are better read. */
static int
map_open(FileMapObject *self, int fd, off_t offset, size_t bytes)
{
    if (!map_is_cached(fd, offset, bytes) || (self->place = map_claim()) == MAPS) {
        return 0;
    }
    size_t skip = (size_t)offset % page_bytes;
    void *base = mmap(NULL, skip + bytes, PROT_READ, MAP_SHARED, fd, offset - (off_t)skip);
    if (base == MAP_FAILED) {
        (void)atomic_fetch_add(&maps[self->place].turn, TURNS - CLAIMED);
        return 0;
    }
    self->base = base;
    self->mapped = skip + bytes;
    self->data = self->base + skip;
    self->bytes = bytes;
    /* As far as the kernel maps: a fault may be beyond the last byte, in its page. */
    size_t whole = (self->mapped + page_bytes - 1) / page_bytes * page_bytes;
    atomic_store(&maps[self->place].lost, 0);
    atomic_store(&maps[self->place].end, (uintptr_t)base + whole);
    atomic_store(&maps[self->place].begin, (uintptr_t)base);
    (void)atomic_fetch_add(&maps[self->place].turn, OPEN - CLAIMED);
    return 1;
}

static void
map_dealloc(PyObject *op)
{
    FileMapObject *self = (FileMapObject *)op;
    if (self->base != NULL) {
        /* The place first: as soon as the addresses are free another map may get them. */
        (void)atomic_fetch_add(&maps[self->place].turn, TURNS - OPEN);
        (void)munmap(self->base, self->mapped);
    }
    ext_free(op);
}

PyObject *
module_map_file(PyObject *module, PyObject *args)
{
    int fd;
    long long offset;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(args, "iLn:map_file", &fd, &offset, &bytes)) {
        return NULL;
    }
    if (offset < 0 || bytes < 1 || offset > INT64_MAX - (long long)bytes) {
        PyErr_Format(PyExc_ValueError,
                     "a map of %zd bytes from %lld on: wanted 1 or more from 0 on", bytes, offset);
        return NULL;
    }
    if (!map_is_guarded()) {
        Py_RETURN_NONE;
    }
    ext_state *state = PyModule_GetState(module);
    FileMapObject *self = PyObject_New(FileMapObject, state->file_map_type);
    if (self == NULL) {
        return NULL;
    }
    self->base = NULL;
    if (!map_open(self, fd, (off_t)offset, (size_t)bytes)) {
        Py_DECREF((PyObject *)self);
        Py_RETURN_NONE;
    }
    return (PyObject *)self;
}

/* ---- type ---------------------------------------------------------------------------------- */

static int
map_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    FileMapObject *self = (FileMapObject *)op;
    return PyBuffer_FillInfo(view, op, (void *)self->data, (Py_ssize_t)self->bytes, 1, flags);
}

static PyObject *
map_whole(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!atomic_load(&maps[((FileMapObject *)op)->place].lost));
}

static PyGetSetDef map_getset[] = {
    {"whole", map_whole, NULL, "Whether every byte that was looked at so far was the file's.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_doc, (void *)"Part of a file, as memory: read-only, through the buffer protocol."},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_getset, map_getset},
    {Py_bf_getbuffer, map_getbuffer},
    {0, NULL},
};

static PyType_Spec map_spec = {
    .name = "sharedvector._core.FileMap",
    .basicsize = sizeof(FileMapObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = map_slots,
};

int
ext_file_map_init(PyObject *module, ext_state *state)
{
    state->file_map_type = ext_type_add(module, &map_spec, "FileMap");
    return state->file_map_type != NULL ? 0 : -1;
}
