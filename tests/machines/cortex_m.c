/* Start of a program on a Cortex-M of QEMU (mps2-an386, mps2-an500): memory, the floating-point unit, files by semihosting. */
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
extern uint32_t _sidata, _sdata, _edata, __bss_start__, __bss_end__, __StackTop;
extern int main(int, char **); extern void initialise_monitor_handles(void);
void Reset_Handler(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\n isb");
    memcpy(&_sdata, &_sidata, (size_t)((char *)&_edata - (char *)&_sdata));
    memset(&__bss_start__, 0, (size_t)((char *)&__bss_end__ - (char *)&__bss_start__));
    initialise_monitor_handles();
    char *argv[] = {(char *)"t", (char *)".", 0};
    exit(main(2, argv));
}
void Fault(void) { for (;;) { __asm__ volatile("bkpt 0"); } }
void _init(void) {} void _fini(void) {}
__attribute__((section(".vectors"), used)) static void *const vectors[] = {&__StackTop, Reset_Handler, Fault, Fault, Fault, Fault, Fault};
