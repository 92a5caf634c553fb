// The memory of an emulated launch: which bytes exist, which threads touched each byte last, and whether a barrier or a
// fence orders two touches of a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace attn::msl {

/// Address spaces, with the numbers that clang's address_space(n) has.
enum class Space : uint8_t { thread = 0, device = 1, constant = 2, threadgroup = 3 };
std::string_view name(Space space);

/// The clocks of a threadgroup's simdgroups, for device memory or for threadgroup memory. A simdgroup's clock grows at
/// each barrier that orders this memory.
struct Clocks {
  std::vector<uint32_t> now;    // of each simdgroup
  std::vector<uint32_t> since;  // of each simdgroup: its clock after the last barrier of the whole threadgroup
};

/// A thread at one moment.
struct Actor {
  uint32_t group = 0;   // number of the threadgroup, from 1 on
  uint16_t thread = 0;  // number in the threadgroup
  uint32_t clock = 0;   // of its simdgroup
  uint32_t place = 0;   // a line of the kernel's text: an index in Code::places (machine.h)
  uint32_t simdgroup() const { return thread / 32; }
};

/// What a threadgroup made visible to the other threadgroups by a fence and an atomic operation.
struct Release {
  Actor actor;                  // the thread that did the atomic operation
  std::vector<uint32_t> since;  // Clocks::since at that moment
};
/// The last release of each threadgroup.
using Releases = std::map<uint32_t, Release>;

/// An earlier touch that conflicts with a new touch.
struct Conflict {
  Actor earlier;
  bool earlier_wrote = false;
  bool ordered = false;  // a fence orders the two, but the memory of the two threadgroups is not coherent
  size_t offset = 0;     // of the first byte in conflict, from the region's begin
};

/// A read or a write of some bytes.
struct Touch {
  size_t offset = 0, bytes = 0;
  bool writes = false, atomic = false;
  bool coherent = false;  // through a pointer with coherent(device)
};

/// A range of bytes: a buffer, a constant, or an array in threadgroup memory.
class Region {
 public:
  Region(std::string region_name, const void* begin, size_t bytes)
      : name(std::move(region_name)), begin_(reinterpret_cast<uintptr_t>(begin)), bytes_(bytes) {}

  uintptr_t begin() const { return begin_; }
  uintptr_t end() const { return begin_ + bytes_; }
  size_t bytes() const { return bytes_; }

  /// Forgets all touches.
  void forget() {
    pages_.clear();
    last_ = nullptr;
  }
  /// Returns whether each byte has been written since forget().
  bool is_written(size_t offset, size_t bytes) const;
  /// Notes a touch. Returns whether the touch conflicts with an earlier touch; if so, `conflict` gets the earlier
  /// touch. `clocks` belong to the actor's threadgroup; `known` are the releases that this threadgroup has seen.
  bool touch(const Touch& touch, const Actor& actor, const Clocks& clocks, const Releases& known, Conflict& conflict);

  const std::string name;

 private:
  /// The smallest group that includes all threads that have read a unit since the last barrier.
  enum Readers : uint8_t { one, of_simdgroup, of_threadgroup, of_grid };
  /// The last write and the last read of a word of 4 bytes, or of one byte.
  struct Unit {
    Actor writer, reader;  // group 0: none
    Readers readers = one;
    bool wrote_atomic = false, read_atomic = false, wrote_coherent = false;
  };
  // A page has a unit for each word. At the first touch of a part of a word, the page gets a unit for each half of a
  // word, or for each byte.
  static constexpr size_t page_bytes = 4096;
  struct Page {
    size_t number = 0;
    unsigned shift = 2;  // a unit has 1 << shift bytes
    std::vector<Unit> units{page_bytes / 4};
  };
  Page& page_of(size_t offset, unsigned shift);
  static bool conflicts(Unit& unit, const Touch& touch, const Actor& actor, const Clocks& clocks, const Releases& known,
                        Conflict& conflict);

  const uintptr_t begin_;
  const size_t bytes_;
  std::unordered_map<size_t, std::unique_ptr<Page>> pages_;
  mutable Page* last_ = nullptr;  // the page that was looked up last
};

}  // namespace attn::msl
