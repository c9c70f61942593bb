/* Codes, texts and messages. */
#include "error.h"

#include <errno.h>
#include <string.h>

#include "world.h"

static void
every_code_has_its_text(void)
{
#define ERROR_ROW(symbol, value, text, python_class)                                               \
    EQ(symbol, value);                                                                             \
    EQ_STR(sv_error_text(symbol), text);                                                           \
    CHECK(strlen(#python_class) != 0);
    SV_ERROR_TABLE(ERROR_ROW)
#undef ERROR_ROW
    EQ_STR(sv_error_text(SV_OK), "no error");
    EQ_STR(sv_error_text(1), "unknown error code");
    EQ_STR(sv_error_text(-1000), "unknown error code");
}

static void
version_is_the_headers(void)
{
    EQ_STR(sv_version(), SV_VERSION_STRING);
}

static void
failures_are_described(void)
{
    sv_error err = {.code = 0};
    EQ(svi_fail(&err, SV_EINDEX, 0, "pick", "slot %d of %d", 7, 4), SV_EINDEX);
    EQ(err.code, SV_EINDEX);
    EQ(err.sys_errno, 0);
    EQ_STR(err.operation, "pick");
    EQ_STR(err.message, "slot 7 of 4");
    EQ(svi_fail(NULL, SV_EFULL, 0, "pick", "nobody reads %s", "this"), SV_EFULL);
}

static void
the_systems_reason_is_appended(void)
{
    sv_error err = {.code = 0};
    EQ(svi_fail(&err, SV_ESYS, ENOENT, "open", "cannot open x"), SV_ESYS);
    EQ(err.sys_errno, ENOENT);
    EQ_STR(err.message, "cannot open x: No such file or directory");
}

static void
long_texts_are_cut(void)
{
    char text[3000];
    sv_error err = {.code = 0};
    memset(text, 't', sizeof text);
    text[sizeof text - 1] = '\0';
    EQ(svi_fail(&err, SV_ESYS, EIO, text, "%s", text), SV_ESYS);
    EQ(strlen(err.message), sizeof err.message - 1);
    EQ(strlen(err.operation), sizeof err.operation - 1);
}

static void
texts_are_copied_within_their_size(void)
{
    char out[8];
    memset(out, 'o', sizeof out);
    svi_text_copy(out, sizeof out, "abc");
    EQ_STR(out, "abc");
    svi_text_copy(out, sizeof out, "abcdefghijk");
    EQ_STR(out, "abcdefg");
    svi_text_copy(out, sizeof out, "");
    EQ_STR(out, "");
}

int
main(void)
{
    world_begin(50);
    RUN(every_code_has_its_text);
    RUN(version_is_the_headers);
    RUN(failures_are_described);
    RUN(the_systems_reason_is_appended);
    RUN(long_texts_are_cut);
    RUN(texts_are_copied_within_their_size);
    return world_end();
}
