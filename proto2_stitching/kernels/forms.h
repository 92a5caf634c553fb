// The forms of the score function: how a kernel reaches the function. A fragment is the function, compiled apart from
// the kernel (fragment.h). For the host and the kernels.
#pragma once

#define FORM_MONOLITHIC 0      // the text of the function in place
#define FORM_INLINE 1          // a call of a helper that is always inlined
#define FORM_NOINLINE 2        // a call of a helper that is never inlined
#define FORM_SWITCH 3          // the text in place, under a branch on a value that is the same for all scores
#define FORM_POINTER 4         // a call through a table in the device's memory
#define FORM_STITCHED 5        // a call of a fragment that is linked before the optimiser
#define FORM_STITCHED_NOLTO 6  // a call of a fragment that is linked as machine code
#define FORM_STD_FUNCTION 7    // a call of a std::function of the host (cpu)
#define FORM_VIRTUAL 8         // a call of a virtual function (cpu)
// FORM_STITCHED_GRAPH (9) is in form_metal.h.
