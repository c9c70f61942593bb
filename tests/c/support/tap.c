/* TAP output and the counting of failed checks. */
#include "tap.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct {
    unsigned tests;
    unsigned failed_tests;
    unsigned skipped_tests;
    _Atomic unsigned checks;   /* threads check too */
    _Atomic unsigned failures; /* since the last reset */
    const char *skipped;
    char context[160];
} tap;

static bool
tap_judge(bool held)
{
    tap.checks++;
    tap.failures += held ? 0 : 1;
    return held;
}

static const char *
tap_where(void)
{
    return tap.context[0] == '\0' ? "" : " while ";
}

bool
tap_check(bool held, const char *file, int line, const char *expression)
{
    if (!tap_judge(held)) {
        printf("# %s:%d: not true: %s%s%s\n", file, line, expression, tap_where(), tap.context);
    }
    return held;
}

bool
tap_equal(int64_t found, int64_t wanted, const char *file, int line, const char *expression)
{
    bool held = tap_judge(found == wanted);
    if (!held) {
        printf("# %s:%d: %s: found %lld, wanted %lld%s%s\n", file, line, expression,
               (long long)found, (long long)wanted, tap_where(), tap.context);
    }
    return held;
}

bool
tap_equal_text(const char *found, const char *wanted, const char *file, int line,
               const char *expression)
{
    bool held = tap_judge(strcmp(found, wanted) == 0);
    if (!held) {
        printf("# %s:%d: %s: found \"%s\", wanted \"%s\"%s%s\n", file, line, expression, found,
               wanted, tap_where(), tap.context);
    }
    return held;
}

bool
tap_contains(const char *text, const char *part, const char *file, int line, const char *expression)
{
    bool held = tap_judge(strstr(text, part) != NULL);
    if (!held) {
        printf("# %s:%d: %s: \"%s\" is not in \"%s\"%s%s\n", file, line, expression, part, text,
               tap_where(), tap.context);
    }
    return held;
}

void
tap_context(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(tap.context, sizeof tap.context, format, arguments);
    va_end(arguments);
}

void
tap_note(const char *format, ...)
{
    va_list arguments;
    printf("# ");
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

void
tap_run(const char *name, void (*test)(void))
{
    tap.failures = 0;
    tap.skipped = NULL;
    tap.context[0] = '\0';
    test();
    tap.tests++;
    if (tap.failures != 0) {
        tap.failed_tests++;
        printf("not ok %u - %s\n", tap.tests, name);
    } else if (tap.skipped != NULL) {
        tap.skipped_tests++;
        printf("ok %u - %s # SKIP %s\n", tap.tests, name, tap.skipped);
    } else {
        printf("ok %u - %s\n", tap.tests, name);
    }
}

void
tap_skip(const char *reason)
{
    tap.skipped = reason;
}

unsigned
tap_failures(void)
{
    return tap.failures;
}

void
tap_reset(void)
{
    tap.failures = 0;
}

int
tap_done(void)
{
    printf("1..%u\n# %u tests, %u failed, %u skipped, %u checks\n", tap.tests, tap.tests,
           tap.failed_tests, tap.skipped_tests, tap.checks);
    if (tap.tests == 0 || tap.failed_tests != 0) {
        return 1;
    }
    return tap.skipped_tests == tap.tests ? 77 : 0;
}
