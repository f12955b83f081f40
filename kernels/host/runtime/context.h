// Switching between stacks. ucontext does it too, but with two system calls a switch, and there are millions.
#pragma once

extern "C" {
// Saves the callee-saved registers on the current stack, stores its pointer in *saved, and goes on from `next`.
void linnet_host_switch(void** saved, void* next);
// Where a new stack begins: calls linnet_host_thread_main, which never returns.
void linnet_host_start();
}

#if defined(__x86_64__)
asm(R"(
.text
.globl linnet_host_switch
linnet_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.globl linnet_host_start
linnet_host_start:
  andq $-16, %rsp
  call linnet_host_thread_main
)");
constexpr int RETURN_WORD = 6;
constexpr int FRAME_WORDS = 8;
#elif defined(__aarch64__)
asm(R"(
.text
.globl linnet_host_switch
linnet_host_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.globl linnet_host_start
linnet_host_start:
  bl linnet_host_thread_main
)");
constexpr int RETURN_WORD = 11;
constexpr int FRAME_WORDS = 20;
#else
#error "the Metal host runner knows x86-64 and aarch64"
#endif
