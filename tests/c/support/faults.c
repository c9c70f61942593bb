/* The hook that every call of the core passes in the testing build. */
#include "faults.h"

int (*svi_fault_hook)(const char *call);
