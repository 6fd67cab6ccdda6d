/* Instructions of a step, by the timer of an emulated board that takes 40 of them for a tick. */
#include <stdint.h>
#include <stdio.h>
#include "m.h"
enum { STEPS = 20 };
static m_state state;
static INPUT x[STEPS * M_X];
static int32_t y[STEPS * M_Y]; /* as wide as any */
int main(void) {
    volatile uint32_t *const timer = (volatile uint32_t *)0xE000E010;
    m_init(&state);
    timer[1] = 0xFFFFFF;
    timer[2] = 0;
    timer[0] = 5;
    m_run(&state, x, (void *)y, STEPS);
    printf("%lu\n", (unsigned long)(0xFFFFFF - timer[2]) * 40 / STEPS);
    return 0;
}
