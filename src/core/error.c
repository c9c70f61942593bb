/* Error texts. No state: everything goes into the caller's sv_error. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef SVI_TESTING
void (*svi_step_hook)(const char *name) = NULL;
#endif

static int (*error_interrupted)(void);

void
sv_interrupts(int (*interrupted)(void))
{
    error_interrupted = interrupted;
}

bool
svi_interrupted(void)
{
    return error_interrupted != NULL && error_interrupted() != 0;
}

const char *
sv_version(void)
{
    return SV_VERSION_STRING;
}

const char *
sv_error_text(int code)
{
    switch (code) {
    case SV_OK:
        return "no error";
#define ERROR_TEXT_ROW(symbol, value, text, python_class)                                          \
    case symbol:                                                                                   \
        return text;
        SV_ERROR_TABLE(ERROR_TEXT_ROW)
#undef ERROR_TEXT_ROW
    default:
        return "unknown error code";
    }
}

int
svi_fail(sv_error *err, int code, int sys_errno, const char *operation, const char *format, ...)
{
    if (err == NULL) {
        return code;
    }
    err->code = code;
    err->sys_errno = sys_errno;
    (void)snprintf(err->operation, sizeof err->operation, "%s", operation);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(err->message, sizeof err->message, format, arguments);
    va_end(arguments);
    if (sys_errno != 0 && length >= 0 && (size_t)length < sizeof err->message) {
        char text[128];
        /* The GNU form returns the text, which need not lie in the buffer. */
        const char *reason = strerror_r(sys_errno, text, sizeof text);
        (void)snprintf(err->message + length, sizeof err->message - (size_t)length, ": %s", reason);
    }
    return code;
}

void
svi_text_copy(char *out, size_t size, const char *text)
{
    size_t length = strnlen(text, size - 1);
    memcpy(out, text, length);
    out[length] = '\0';
}
