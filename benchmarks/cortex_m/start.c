/* Start of a program on an emulated board: memory, semihosting, main. */
#include <stdint.h>
#include <stdlib.h>
extern int main(void);
extern void initialise_monitor_handles(void);
extern uint32_t stack_top, data_from, data_to, data_end, bss_from, bss_end;
static void start(void) {
    for (uint32_t *to = &data_to, *from = &data_from; to < &data_end;) *to++ = *from++;
    for (uint32_t *to = &bss_from; to < &bss_end;) *to++ = 0;
#ifdef FLOATS
    *(volatile uint32_t *)0xE000ED88 |= 0xF00000; /* the floating-point unit */
#endif
    initialise_monitor_handles();
    exit(main());
}
static void fault(void) { abort(); }
__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &stack_top, start, fault, fault, fault, fault, fault,
};
