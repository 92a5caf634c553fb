// A fake of Apple's Metal, on which the device `metal` runs on Linux. It answers the messages that metal-cpp sends as
// the headers of Metal allow, and runs kernels on the emulator (emulator/emulator.h). It checks that the host's code
// - sends messages in an order that Metal allows, and none to an object that was released;
// - ends every encoder, and orders encoders by fences, because Metal does not track memory that kernels reach by
// address;
// - binds the arguments that the kernel has, and no other;
// - makes stitching graphs of [[stitchable]] functions, with nodes whose numbers and types fit;
// - touches shared memory by the host's addresses only, and lets kernels touch resident memory only;
// - waits: commands run when the host asks for their status the second time.
// If a check fails, the message throws Misuse; Apple's Metal would end the process, or compute nonsense. The fake says
// nothing of a GPU's results and times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

namespace attn::fake {

struct Misuse : std::logic_error {
  using std::logic_error::logic_error;
};

/// What the fake system and its GPU are, and what goes wrong.
struct System {
  int macos = 15;
  bool has_gpu = true;
  bool has_default = true;  // whether the GPU is the system's default; else it is only in the list of all
  long family = 1009;       // MTLGPUFamilyApple9, of an M3 and M4
  size_t threadgroup_bytes = 32768;
  size_t threads_per_threadgroup = 1024;  // that a pipeline allows
  size_t memory_bytes = size_t{8} << 30;
  bool other_fragments = false;              // simdgroup matrices lie in another order in the lanes
  bool fast_math = false;                    // the compiler assumes finite numbers, whatever its options say
  std::optional<uint64_t> one_address = {};  // that all memory has for kernels; 0: none
  bool links = true;                         // whether there are tables of functions, and dynamic libraries
  bool gives_times = true;
  bool overlap = false;  // the times of command buffers overlap: from 1 s to 2 s, from 1 s to 3 s, and so on
  bool ends = true;      // whether command buffers ever complete
  long error = 0;        // the MTLCommandBufferError with which the next command buffer ends
  std::string error_text = "the command buffer\nfails";
  std::string error_domain = "MTLCommandBufferErrorDomain";
  bool finds = true;            // whether an archive has the code that it got
  std::set<std::string> fails;  // messages that return nil, with an error where they have one: "newCommandQueue"
};
System& system();

/// The number of objects that exist, by their classes.
std::map<std::string, long> objects();
/// How often each message was sent.
std::map<std::string, uint64_t> messages();

/// An id<MTLBuffer> of a program, with its memory for the host.
void* new_buffer(size_t bytes);
std::byte* contents_of(void* buffer);
void release_buffer(void* buffer);

/// Sends Metal a wrong sequence of messages; throws Misuse. The sequences have numbers from 0 on; returns what is wrong
/// with the sequence, and an empty text for a number that is too large.
std::string misuse(int number);

}  // namespace attn::fake
