/* Rule F3. Pins are left in cells where this process has pins of its own: no scan ever sees such a
 * cell without pins in between. */
#include "share.h"

#include <string.h>

#include "error.h"
#include "os.h"
#include "row.h"

void
svi_share_begin(svi_mapping *m)
{
    int fd = svi_fresh(m);
    if (fd < 0 || svi_os_lock_try(fd, SVI_LOCK_SHARED + m->hold.row, false) != 0 ||
        svi_os_map_anchor(fd, 0, SVI_PAGE, true, &m->sharers) != 0) {
        m->left_for_good = true; /* nobody will know when the child ends */
    }
    svi_os_close(fd);
    (void)svi_os_pass_to_children(m->hold.anchor, m->g.row_stride, true);
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        /* relaxed: own pins (F3) */
        if (m->left[b] == 0 && svi_cells_are_clean(m, b) &&
            svi_cell_pins(svi_load_relaxed(&m->hold.map->r_cells[b])) != 0) {
            svi_add_seq(&m->hold.map->r_cells[b], SVI_PIN); /* E4 */
            m->left[b] = 1;
            svi_add_relaxed(&m->left_pins, 1); /* relaxed: process lock */
        }
    }
    m->sharing = true;
    /* From now on each unpin looks whether the children live (V2). */
    svi_store_seq(&m->closing, svi_load_seq(&m->closing) | SVI_SHARED); /* E11 */
    SVI_STEP("fork.shared");
}

void
svi_share_part(svi_mapping *m)
{
    (void)svi_os_pass_to_children(m->hold.anchor, m->g.row_stride, false);
    svi_os_unmap(m->sharers, SVI_PAGE); /* the child's copy of the map keeps the lock */
    m->sharers = NULL;
    m->sharing = false;
}

void
svi_share_forget(svi_mapping *m)
{
    m->sharers =
        NULL; /* and the anchor: mapped as long as this process lives, as it keeps the row */
    m->sharing = false;
    m->left_for_good = false;
    if (svi_load_relaxed(&m->left_pins) != 0) { /* relaxed: one thread */
        memset(m->left, 0, m->g.buffer_count);
    }
    svi_store_relaxed(&m->left_pins, 0);                                 /* one thread */
    svi_store_seq(&m->closing, svi_load_seq(&m->closing) & ~SVI_SHARED); /* E11 */
}

void
svi_share_settle(svi_mapping *m)
{
    if (svi_load_relaxed(&m->left_pins) == 0 || m->left_for_good) { /* relaxed: process lock */
        return;
    }
    int probe = svi_probe(m);
    if (probe < 0 || svi_os_lock_test(probe, SVI_LOCK_SHARED + m->hold.row) != 0) {
        return;
    }
    for (uint32_t b = 0; b < m->g.buffer_count; b++) {
        if (m->left[b] != 0) {
            m->left[b] = 0;
            (void)svi_sub_seq(&m->hold.map->r_cells[b], SVI_PIN); /* E10 */
            SVI_STEP("share.settled");
        }
    }
    svi_store_relaxed(&m->left_pins, 0);                                 /* relaxed: process lock */
    svi_store_seq(&m->closing, svi_load_seq(&m->closing) & ~SVI_SHARED); /* E11 */
}
