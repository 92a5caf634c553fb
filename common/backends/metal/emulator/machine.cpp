#include "common/backends/metal/emulator/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <unordered_map>

#include "common/backends/cpu/denormals.h"
#include "common/backends/metal/emulator/fiber.h"
#include "common/backends/metal/emulator/memory.h"
#include "common/base/error.h"

namespace attn::msl {

namespace {

constexpr unsigned lanes = lanes_per_simdgroup;

// The places of a lane's first element of an 8 x 8 simdgroup matrix; the second element is the next one of the row.
struct Fragments {
  explicit Fragments(Generation generation) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const bool other = generation == Generation::other_fragments;
      row[lane] = other ? lane / 4 : (lane >> 4 & 1) * 4 + (lane >> 1 & 3);
      column[lane] = other ? lane % 4 * 2 : (lane >> 3 & 1) * 4 + (lane & 1) * 2;
    }
  }
  unsigned row[lanes], column[lanes];
};

// Types of matrix elements, as in metal_stdlib.
enum Type : unsigned { f32 = 0, f16 = 1, bf16 = 2 };
constexpr size_t bytes_of(unsigned type) { return type == f32 ? 4 : 2; }

float element(const void* elements, unsigned type, unsigned index) {
  if (type == f32) return static_cast<const float*>(elements)[index];
  if (type == f16) return static_cast<float>(static_cast<const _Float16*>(elements)[index]);
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(elements)[index]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
uint16_t bfloat_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) {
    bits |= 0x400000;
  } else {
    bits += 0x7fff + (bits >> 16 & 1);  // to nearest, ties to even
  }
  return static_cast<uint16_t>(bits >> 16);
}
void set_element(void* elements, unsigned type, unsigned index, float value) {
  if (type == f32) {
    static_cast<float*>(elements)[index] = value;
  } else if (type == f16) {
    static_cast<_Float16*>(elements)[index] = static_cast<_Float16>(value);
  } else {
    static_cast<uint16_t*>(elements)[index] = bfloat_bits(value);
  }
}

// Rounds to the 10 bits after the binary point that TF32 has, to nearest, ties to even.
float tf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isfinite(value)) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~uint32_t{0x1fff};
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// reads_unwritten: a thread is about to read threadgroup memory that no thread has written yet.
enum class State : uint8_t { ready, reads_unwritten, at_simdgroup, at_threadgroup, done };
enum class Meeting : uint8_t { barrier, gather, shuffle, matrix_memory, multiply };

struct Lane {
  Meeting meeting = Meeting::barrier;
  uint32_t place = 0;
  const void* in = nullptr;  // gather, shuffle: the lane's value; matrix_memory: the address; multiply: the operands
  void* out = nullptr;
  size_t bytes = 0;
  uint32_t argument = 0;               // barrier: kinds of memory; shuffle: the lane to read; multiply: types
  std::array<int64_t, 4> matrix = {};  // matrix_memory: row_elements, column, row, transposed
  bool moved = false;                  // matrix_memory: the lane's elements have been copied
  bool fenced = false;                 // the thread fenced device memory, and since then accessed it only by atomics
  std::vector<void*> arguments;
  std::vector<std::array<uint32_t, 4>> numbers;  // values of parameters that are no pointers; `arguments` points here
};

std::string_view name(Meeting meeting) {
  switch (meeting) {
    case Meeting::barrier:
      return "a barrier";
    case Meeting::gather:
      return "a function over all lanes";
    case Meeting::shuffle:
      return "a shuffle";
    case Meeting::matrix_memory:
      return "a load or store of a matrix";
    case Meeting::multiply:
      return "a product of matrices";
  }
  return "";
}

// Returns ascending numbers as a text such as "0-3, 7".
std::string ranges(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (end > i + 1) text += fmt::format("-{}", numbers[end - 1]);
    i = end;
  }
  return text;
}

alignas(256) std::byte arena[threadgroup_arena_bytes];

// Regions in the order of their addresses.
using Regions = std::deque<Region>;
Regions regions(std::vector<Memory> memory) {
  std::ranges::sort(memory, {}, &Memory::data);
  Regions sorted;
  for (const Memory& part : memory) sorted.emplace_back(part.name, part.data, part.bytes);
  return sorted;
}

class Machine {
 public:
  Machine(const Code& code, const Run& run);
  void run();

  // ---- what compiled code calls, on a lane's stack
  /// `how` has no offset yet. (It is a reference because a copy of flags that were just written would wait for them.)
  void touch(const void* address, Space space, Touch&& how, size_t alignment, uint32_t place);
  void atomic(const void* address, size_t bytes, Space space, bool writes, size_t alignment, uint32_t place);
  void barrier(bool simdgroup_only, uint32_t memory, uint32_t place);
  void fence(uint32_t memory);
  uint32_t gather(const void* value, void* all, size_t bytes, uint32_t place);
  void shuffle(const void* value, void* result, size_t bytes, uint32_t from, uint32_t place);
  void matrix_memory(void* elements, const void* address, unsigned type, Space space, std::array<int64_t, 4> matrix,
                     bool writes, uint32_t place);
  void multiply(const void* const* matrices, void* result, uint32_t types, uint32_t place);
  void bad_number(uint32_t operation, uint32_t place);
  uint32_t lane_number() const { return running_ % lanes; }

 private:
  [[noreturn]] void fault(uint32_t place);  // on a lane's stack; `fault_` says what is wrong
  [[noreturn]] void stop(const std::string& text, uint32_t place) const;  // on the host's stack
  std::string who(uint32_t thread) const;
  std::string where(uint32_t place) const { return code_.places.at(place); }
  void meet(State state);
  void check_arguments();
  void run_group(uint32_t number);
  void take_turns();
  void order(std::vector<uint32_t>& numbers);
  bool release_simdgroup(uint32_t simdgroup);
  /// Where in memory a lane's element `i` of a matrix lies, in bytes from the address that all lanes give.
  int64_t matrix_offset(const Lane& lane, uint32_t number, unsigned i) const;
  void move_matrix(uint32_t simdgroup);
  bool release_threadgroup();
  [[noreturn]] void diverged() const;
  void pass(uint32_t simdgroup, bool whole_threadgroup, uint32_t memory);
  Region* find(const void* address, Space space, uint32_t place = 0);
  /// Returns whether a touch is wrong. If it is, sets `fault_`. `how` gets its offset.
  bool is_wrong(const void* address, Space space, Touch& how, size_t alignment, uint32_t place);
  /// Sets `fault_`. Returns true.
  bool out_of_bounds(const void* address, size_t bytes, Space space, bool writes);
  Actor actor(Space space, uint32_t place) const;
  Clocks& clocks(Space space) { return clocks_[space == Space::threadgroup ? 1 : 0]; }
  const Clocks& clocks(Space space) const { return clocks_[space == Space::threadgroup ? 1 : 0]; }
  void acquire();

  const Code& code_;
  const Run& run_;
  const uint32_t threads_, simdgroups_;
  const Fragments fragments_;
  std::vector<Lane> lanes_;
  std::vector<State> states_;      // of each thread
  std::vector<uint32_t> waiting_;  // the lanes of each simdgroup that are at_simdgroup
  uint32_t at_barrier_ = 0;        // the threads that are at_threadgroup
  uint32_t running_ = 0;           // the thread that runs
  uint32_t group_ = 0;             // its threadgroup, from 0
  std::mt19937 random_;
  std::vector<std::byte> gathered_;  // the values of a simdgroup's lanes
  std::string fault_;
  Regions buffers_, constants_, arrays_;
  std::array<Region*, 64> recent_ = {};  // the region that a place touched last, by the place's last six bits
  Region* array_ = nullptr;              // the array in threadgroup memory that was touched last
  Clocks clocks_[2];                     // for device memory, for threadgroup memory
  // How threadgroups order their touches by atomic operations and fences (Release in memory.h).
  // known_: the releases that the threadgroup has read, and has then acquired by a fence.
  // offered_: the releases that the threadgroup has read since its last fence.
  // by_address_: for each address, the releases that an atomic operation at this address reads.
  Releases known_, offered_;
  std::unordered_map<const void*, Releases> by_address_;
};

Machine* machine = nullptr;  // that runs; `running` guards it
Fibers& fibers() {
  static Fibers all;
  return all;
}
std::mutex running;  // guards arena and fibers

std::array<uint32_t, 4> position(const Grid& grid, uint64_t number) {
  return {static_cast<uint32_t>(number % grid.x), static_cast<uint32_t>(number / grid.x % grid.y),
          static_cast<uint32_t>(number / (uint64_t{grid.x} * grid.y)), 0};
}

Machine::Machine(const Code& code, const Run& run)
    : code_(code),
      run_(run),
      threads_(static_cast<uint32_t>(run.threads.count())),
      simdgroups_((threads_ + lanes - 1) / lanes),
      fragments_(run.generation),
      random_(run.order) {
  buffers_ = regions(run.memory);
  constants_ = regions(code.constants);
}

void Machine::check_arguments() {
  if (run_.threads.count() > most_threads || run_.threads.count() == 0) {
    throw DeviceFault(fmt::format("limits: {}: a threadgroup has {} threads; 1 to {} are allowed", code_.function,
                                  run_.threads.count(), most_threads));
  }
  std::vector<Memory> arrays;
  size_t used = 0, offset = 0;
  for (const Code::Array& array : code_.arrays) {
    arrays.push_back({array.name, arena + array.offset, array.bytes});
    used += array.bytes;
    offset = std::max(offset, array.offset + array.bytes + threadgroup_gap_bytes);
  }
  std::map<uint32_t, void*> places;
  for (const auto& [index, bytes] : run_.threadgroup_bytes) {
    offset = (offset + 255) / 256 * 256;
    used += (bytes + 15) / 16 * 16;
    if (used > most_threadgroup_bytes) break;
    places[index] = arena + offset;
    arrays.push_back({fmt::format("threadgroup({})", index), arena + offset, bytes});
    offset += bytes + threadgroup_gap_bytes;
  }
  if (used > most_threadgroup_bytes) {
    throw DeviceFault(
        fmt::format("limits: {}: a threadgroup needs {} bytes of threadgroup memory; at most {} are allowed",
                    code_.function, used, most_threadgroup_bytes));
  }
  arrays_ = regions(arrays);
  lanes_.resize(threads_);
  for (Lane& lane : lanes_) {
    lane.numbers.resize(code_.parameters.size());
    for (size_t i = 0; i < code_.parameters.size(); ++i) {
      const auto& [attribute, index] = code_.parameters[i];
      void* argument = lane.numbers[i].data();
      if (attribute == "buffer") {
        const auto found = run_.buffers.find(index);
        if (found == run_.buffers.end()) throw BadInput(fmt::format("{} needs buffer {}", code_.function, index));
        argument = const_cast<void*>(found->second);
      } else if (attribute == "threadgroup") {
        const auto found = places.find(index);
        if (found == places.end()) {
          throw BadInput(fmt::format("{} needs the number of bytes of [[threadgroup({})]]", code_.function, index));
        }
        argument = found->second;
      }
      lane.arguments.push_back(argument);
    }
  }
}

// Returns for one thread the value of a parameter that is neither a buffer nor threadgroup memory.
std::array<uint32_t, 4> number_for(const std::string& attribute, const Run& run, uint32_t thread, uint32_t group,
                                   const std::string& function) {
  const auto all = [](uint32_t x) { return std::array<uint32_t, 4>{x, x, x, x}; };
  const std::array<uint32_t, 4> in_group = position(run.threads, thread), of_group = position(run.grid, group);
  const std::array<uint32_t, 4> per_group = {run.threads.x, run.threads.y, run.threads.z, 0};
  const std::array<uint32_t, 4> groups = {run.grid.x, run.grid.y, run.grid.z, 0};
  std::array<uint32_t, 4> in_grid, per_grid;
  for (int i = 0; i < 4; ++i) {
    in_grid[i] = of_group[i] * per_group[i] + in_group[i];
    per_grid[i] = groups[i] * per_group[i];
  }
  const auto threads = static_cast<uint32_t>(run.threads.count());
  if (attribute == "thread_position_in_grid") return in_grid;
  if (attribute == "threads_per_grid") return per_grid;
  if (attribute == "thread_position_in_threadgroup") return in_group;
  if (attribute == "threadgroup_position_in_grid") return of_group;
  if (attribute == "threads_per_threadgroup" || attribute == "dispatch_threads_per_threadgroup") return per_group;
  if (attribute == "threadgroups_per_grid") return groups;
  if (attribute == "thread_index_in_threadgroup") return all(thread);
  if (attribute == "thread_index_in_simdgroup") return all(thread % lanes);
  if (attribute == "simdgroup_index_in_threadgroup") return all(thread / lanes);
  if (attribute == "thread_index_in_quadgroup") return all(thread % 4);
  if (attribute == "quadgroup_index_in_threadgroup") return all(thread / 4);
  if (attribute == "simdgroups_per_threadgroup" || attribute == "dispatch_simdgroups_per_threadgroup") {
    return all((threads + lanes - 1) / lanes);
  }
  if (attribute == "quadgroups_per_threadgroup") return all((threads + 3) / 4);
  if (attribute == "threads_per_simdgroup" || attribute == "thread_execution_width") return all(lanes);
  if (attribute == "grid_origin") return all(0);
  throw BadInput(fmt::format("{}: the emulator has no value for [[{}]]", function, attribute));
}

std::string Machine::who(uint32_t thread) const {
  return fmt::format("thread {} (simdgroup {}, lane {})", thread, thread / lanes, thread % lanes);
}

void Machine::stop(const std::string& text, uint32_t place) const {
  const auto at = position(run_.grid, group_);
  throw DeviceFault(fmt::format("{}; {}, {}, threadgroup ({}, {}, {}), order {}", text, where(place), code_.function,
                                at[0], at[1], at[2], run_.order));
}

// The lane's stack is never unwound, so no function that is active on it may own memory.
void Machine::fault(uint32_t place) {
  lanes_[running_].place = place;
  fibers().leave(true);  // now take_turns() throws, and this lane never runs again
  std::abort();
}

void Machine::meet(State state) {
  states_[running_] = state;
  if (state == State::at_simdgroup) ++waiting_[running_ / lanes];
  if (state == State::at_threadgroup) ++at_barrier_;
  fibers().leave(state == State::done);
}

void Machine::order(std::vector<uint32_t>& numbers) {
  if (run_.order == 1) std::ranges::reverse(numbers);
  if (run_.order >= 2) std::ranges::shuffle(numbers, random_);
}

void Machine::run() {
  check_arguments();
  const FlushDenormals flush;
  std::vector<uint32_t> groups(run_.grid.count());
  std::iota(groups.begin(), groups.end(), 0u);
  order(groups);
  for (const uint32_t group : groups) run_group(group);
}

void Machine::run_group(uint32_t number) {
  group_ = number;
  for (Clocks& clocks : clocks_) {
    clocks.now.assign(simdgroups_, 1);
    clocks.since.assign(simdgroups_, 1);
  }
  known_.clear();
  offered_.clear();
  for (Region& array : arrays_) {
    array.forget();
    std::memset(reinterpret_cast<void*>(array.begin()), 0xff, array.bytes());
  }
  states_.assign(threads_, State::ready);
  waiting_.assign(simdgroups_, 0);
  at_barrier_ = 0;
  for (uint32_t thread = 0; thread < threads_; ++thread) {
    Lane& lane = lanes_[thread];
    lane.fenced = false;
    for (size_t i = 0; i < code_.parameters.size(); ++i) {
      const std::string& attribute = code_.parameters[i].attribute;
      if (attribute == "buffer" || attribute == "threadgroup") continue;
      lane.numbers[i] = number_for(attribute, run_, thread, number, code_.function);
    }
    fibers().prepare(
        thread,
        [](void* self) {
          auto* const own = static_cast<Machine*>(self);
          own->code_.entry(own->lanes_[own->running_].arguments.data());
          own->meet(State::done);
        },
        this);
  }
  take_turns();
}

void Machine::take_turns() {
  std::vector<uint32_t> turns(threads_);
  std::iota(turns.begin(), turns.end(), 0u);
  if (run_.order == 1) order(turns);
  for (;;) {
    if (run_.order >= 2) order(turns);
    bool any = false;
    for (const uint32_t thread : turns) {
      if (states_[thread] != State::ready) continue;
      any = true;
      running_ = thread;
      fibers().enter(thread);
      if (!fault_.empty()) stop(fault_, lanes_[thread].place);
    }
    for (uint32_t simdgroup = 0; simdgroup < simdgroups_; ++simdgroup) any = release_simdgroup(simdgroup) || any;
    any = release_threadgroup() || any;
    if (any) continue;
    for (State& state : states_) {
      if (state != State::reads_unwritten) continue;
      state = State::ready;
      any = true;
    }
    if (any) continue;
    if (std::ranges::all_of(states_, [](State state) { return state == State::done; })) return;
    diverged();
  }
}

bool Machine::release_simdgroup(uint32_t simdgroup) {
  const uint32_t first = simdgroup * lanes, end = std::min(first + lanes, threads_);
  if (waiting_[simdgroup] != end - first) return false;
  waiting_[simdgroup] = 0;
  const std::span<Lane> all(lanes_.data() + first, end - first);
  const Lane& one = all.front();
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (all[i].meeting == one.meeting && all[i].place == one.place) continue;
    stop(fmt::format("divergence: {} is at {} at {}, but {} is at {}", who(first), name(one.meeting), where(one.place),
                     who(first + i), name(all[i].meeting)),
         all[i].place);
  }
  switch (one.meeting) {
    case Meeting::barrier:
      pass(simdgroup, false, one.argument);
      break;
    case Meeting::gather:
      gathered_.resize(all.size() * one.bytes);
      for (uint32_t i = 0; i < all.size(); ++i) std::memcpy(gathered_.data() + i * one.bytes, all[i].in, one.bytes);
      for (const Lane& to : all) std::memcpy(to.out, gathered_.data(), gathered_.size());
      break;
    case Meeting::shuffle:
      for (uint32_t i = 0; i < all.size(); ++i) {
        if (all[i].argument >= all.size()) {
          stop(fmt::format("divergence: {} reads a value of lane {}, which does not exist", who(first + i),
                           all[i].argument),
               one.place);
        }
        std::memcpy(all[i].out, all[all[i].argument].in, one.bytes);
      }
      break;
    case Meeting::matrix_memory:
    case Meeting::multiply:
      if (all.size() != lanes) {
        stop(fmt::format("divergence: simdgroup {} has {} lanes; a matrix needs {}", simdgroup, all.size(), lanes),
             one.place);
      }
      if (one.meeting == Meeting::matrix_memory) {
        for (uint32_t i = 0; i < lanes; ++i) {
          if (all[i].in == one.in && all[i].matrix == one.matrix) continue;
          stop(fmt::format("divergence: {} and {} give different addresses of one matrix", who(first), who(first + i)),
               one.place);
        }
        move_matrix(simdgroup);
        break;
      }
      const bool rounds = run_.generation == Generation::tf32;
      float matrices[3][8][8];  // a, b, c
      for (unsigned m = 0; m < 3; ++m) {
        const unsigned type = one.argument >> (2 * m + 2) & 3;
        for (uint32_t lane = 0; lane < lanes; ++lane) {
          const void* const own = static_cast<const void* const*>(all[lane].in)[m];
          float* const at = &matrices[m][fragments_.row[lane]][fragments_.column[lane]];
          if (type == f32) {
            std::memcpy(at, own, 2 * sizeof(float));
          } else {
            for (unsigned i = 0; i < 2; ++i) at[i] = element(own, type, i);
          }
        }
        if (rounds && m < 2 && type == f32) {
          for (auto& row : matrices[m]) std::ranges::transform(row, row, tf32);
        }
      }
      // Each sum adds its products in the order of k; the loop over columns is the innermost, so that it is a vector's.
      for (unsigned k = 0; k < 8; ++k) {
        for (unsigned row = 0; row < 8; ++row) {
          for (unsigned column = 0; column < 8; ++column) {
            matrices[2][row][column] += matrices[0][row][k] * matrices[1][k][column];
          }
        }
      }
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        const float* const sums = &matrices[2][fragments_.row[lane]][fragments_.column[lane]];
        for (unsigned i = 0; i < 2; ++i) set_element(all[lane].out, one.argument & 3, i, sums[i]);
      }
      break;
  }
  std::fill(states_.begin() + first, states_.begin() + end, State::ready);
  return true;
}

int64_t Machine::matrix_offset(const Lane& lane, uint32_t number, unsigned i) const {
  int64_t row = fragments_.row[number], column = fragments_.column[number] + i;
  const auto& [row_elements, first_column, first_row, transposed] = lane.matrix;
  if (transposed != 0) std::swap(row, column);
  return ((row + first_row) * row_elements + column + first_column) * static_cast<int64_t>(bytes_of(lane.argument & 3));
}

// Copies a matrix for all lanes at once. If anything is wrong, leaves it to the lanes, which report it.
void Machine::move_matrix(uint32_t simdgroup) {
  const std::span<Lane> all(lanes_.data() + simdgroup * lanes, lanes);
  const Lane& one = all.front();
  const auto space = static_cast<Space>(one.argument >> 3);
  const bool writes = (one.argument & 4) != 0, joined = one.matrix[3] == 0;
  const size_t size = bytes_of(one.argument & 3);
  for (Lane& lane : all) lane.moved = false;
  Region* const region = find(one.in, space, one.place);
  if (!region || reinterpret_cast<uintptr_t>(one.in) % size != 0) return;
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(one.in) - region->begin());
  const auto bytes = static_cast<int64_t>(joined ? 2 * size : size);
  for (uint32_t number = 0; number < lanes; ++number) {
    Lane& lane = all[number];
    running_ = simdgroup * lanes + number;
    for (unsigned i = 0; i < 2; i += joined ? 2 : 1) {
      const int64_t at = begin + matrix_offset(lane, number, i);
      if (at < 0 || at + bytes > static_cast<int64_t>(region->bytes())) return;
      const auto offset = static_cast<size_t>(at), count = static_cast<size_t>(bytes);
      Conflict ignored;
      if (space == Space::threadgroup && !writes && !region->is_written(offset, count)) return;
      if (space != Space::constant && region->touch({.offset = offset, .bytes = count, .writes = writes},
                                                    actor(space, lane.place), clocks(space), known_, ignored)) {
        return;
      }
      auto* const in_memory = reinterpret_cast<std::byte*>(region->begin() + offset);
      auto* const in_lane = static_cast<std::byte*>(lane.out) + i * size;
      std::memcpy(writes ? in_memory : in_lane, writes ? in_lane : in_memory, count);
    }
    if (space == Space::device) lane.fenced = false;
    lane.moved = true;
  }
}

bool Machine::release_threadgroup() {
  if (at_barrier_ != threads_) return false;
  at_barrier_ = 0;
  const Lane& one = lanes_.front();
  for (uint32_t thread = 0; thread < threads_; ++thread) {
    if (lanes_[thread].place == one.place && lanes_[thread].argument == one.argument) continue;
    stop(fmt::format("divergence: {} is at the barrier at {}, but {} is at another", who(0), where(one.place),
                     who(thread)),
         lanes_[thread].place);
  }
  for (uint32_t simdgroup = 0; simdgroup < simdgroups_; ++simdgroup) pass(simdgroup, true, one.argument);
  std::ranges::fill(states_, State::ready);
  return true;
}

// Advances the simdgroup's clocks for the memory that a barrier orders: bit 0 of `memory` is device memory, bit 1 is
// threadgroup memory.
void Machine::pass(uint32_t simdgroup, bool whole_threadgroup, uint32_t memory) {
  for (const unsigned kind : {0u, 1u}) {
    if ((memory >> kind & 1) == 0) continue;
    const uint32_t now = ++clocks_[kind].now[simdgroup];
    if (whole_threadgroup) clocks_[kind].since[simdgroup] = now;
  }
}

void Machine::diverged() const {
  std::vector<uint32_t> waiting;
  const auto first = static_cast<uint32_t>(
      std::ranges::find_if(states_, [](State state) { return state != State::done; }) - states_.begin());
  // If some lanes of a simdgroup wait for its other lanes, the message is about this simdgroup, else about the
  // threadgroup.
  uint32_t at = first, begin = 0, end = threads_;
  for (uint32_t thread = 0; thread < threads_; ++thread) {
    if (states_[thread] != State::at_simdgroup) continue;
    at = thread;
    begin = thread / lanes * lanes;
    end = std::min(begin + lanes, threads_);
    break;
  }
  const Lane& one = lanes_[at];
  uint32_t other = at;
  for (uint32_t thread = begin; thread < end; ++thread) {
    if (states_[thread] == states_[at] && lanes_[thread].place == one.place) {
      waiting.push_back(thread);
    } else if (other == at) {
      other = thread;
    }
  }
  const bool of_threadgroup = states_[at] == State::at_threadgroup;
  const std::string what = of_threadgroup || one.meeting == Meeting::barrier
                               ? (of_threadgroup ? "a barrier of the threadgroup" : "a barrier of the simdgroup")
                               : std::string(name(one.meeting));
  const Lane& rest = lanes_[other];
  const std::string elsewhere =
      states_[other] == State::done ? "has returned" : fmt::format("waits at {}", where(rest.place));
  stop(fmt::format("divergence: threads {} wait at {}, but {} {}", ranges(waiting), what, who(other), elsewhere),
       one.place);
}

Actor Machine::actor(Space space, uint32_t place) const {
  return {group_ + 1, static_cast<uint16_t>(running_), clocks(space).now[running_ / lanes], place};
}

Region* Machine::find(const void* address, Space space, uint32_t place) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto in = [&](Regions& all) -> Region* {
    const auto after = std::ranges::upper_bound(all, at, {}, &Region::begin);
    if (after == all.begin()) return nullptr;
    Region& region = *std::prev(after);
    return at < region.end() ? &region : nullptr;
  };
  if (space == Space::threadgroup) {
    if (!array_ || at < array_->begin() || at >= array_->end()) array_ = in(arrays_);
    return array_;
  }
  Region*& recent = recent_[place % recent_.size()];
  if (recent && at >= recent->begin() && at < recent->end()) return recent;
  Region* found = in(buffers_);
  if (!found && space == Space::constant) found = in(constants_);
  if (found) recent = found;
  return found;
}

bool Machine::out_of_bounds(const void* address, size_t bytes, Space space, bool writes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const Region* nearest = nullptr;
  uintptr_t least = UINTPTR_MAX;
  for (const Region& region : space == Space::threadgroup ? arrays_ : buffers_) {
    const uintptr_t gap = at >= region.end() ? at - region.end() : at < region.begin() ? region.begin() - at : 0;
    if (gap < least) {
      least = gap;
      nearest = &region;
    }
  }
  std::string which = "outside of all memory";
  if (Region* const other = find(address, space == Space::threadgroup ? Space::device : Space::threadgroup)) {
    which = fmt::format("at an address of {}, which is {} memory", other->name,
                        msl::name(space == Space::threadgroup ? Space::device : Space::threadgroup));
  } else if (nearest && least < size_t{1} << 24) {
    const auto offset = static_cast<int64_t>(at - nearest->begin());
    which = fmt::format("at word {} (byte {}) of {}, which has {} bytes",
                        offset >= 0 ? offset / 4 : -((3 - offset) / 4), offset, nearest->name, nearest->bytes());
  } else if (at == 0) {
    which = "at a null pointer";
  }
  fault_ = fmt::format("bounds: {} {} {} bytes of {} memory {}", who(running_), writes ? "writes" : "reads", bytes,
                       msl::name(space), which);
  return true;
}

bool Machine::is_wrong(const void* address, Space space, Touch& how, size_t alignment, uint32_t place) {
  const size_t bytes = how.bytes;
  const bool writes = how.writes, atomic = how.atomic;
  if (bytes == 0) return false;
  Region* const region = find(address, space, place);
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (!region || at + bytes > region->end()) return out_of_bounds(address, bytes, space, writes);
  const size_t offset = how.offset = at - region->begin();
  const auto word = [&](size_t of) { return fmt::format("word {} (byte {}) of {}", of / 4, of, region->name); };
  if ((at & (alignment - 1)) != 0) {  // alignments are powers of 2
    fault_ = fmt::format("alignment: {} {} {}, whose address is no multiple of {}", who(running_),
                         writes ? "writes" : "reads", word(offset), alignment);
    return true;
  }
  if (space == Space::constant) return false;
  if (space == Space::device && !atomic) lanes_[running_].fenced = false;
  if (space == Space::threadgroup && (!writes || atomic) && !region->is_written(offset, bytes)) {
    // This thread waits until no other thread can go on. If another thread writes the word in the meantime, a barrier
    // is missing, and the fault is a race.
    meet(State::reads_unwritten);
    if (!region->is_written(offset, bytes)) {
      fault_ = fmt::format("unwritten: {} reads {}, which no thread has written", who(running_), word(offset));
      return true;
    }
  }
  Conflict conflict;
  if (!region->touch(how, actor(space, place), clocks(space), known_, conflict)) return false;
  const Actor& earlier = conflict.earlier;
  // If several threads have read the word, the region notes only one of these threads, which may be this thread.
  const bool itself = earlier.group == group_ + 1 && earlier.thread == running_;
  std::string other = itself ? "another thread" : who(earlier.thread);
  if (earlier.group != group_ + 1) {
    const auto its = position(run_.grid, earlier.group - 1);
    other += fmt::format(" of threadgroup ({}, {}, {})", its[0], its[1], its[2]);
  }
  fault_ = fmt::format("{}: {} {} {}, which {} {} at {}, and {}", conflict.ordered ? "coherence" : "race",
                       who(running_), writes ? "writes" : "reads", word(conflict.offset), other,
                       conflict.earlier_wrote ? "wrote" : "read", where(earlier.place),
                       conflict.ordered ? fmt::format("the {} is not through a pointer with coherent(device)",
                                                      how.coherent || atomic ? "earlier access" : "access")
                                        : "no barrier orders the two");
  return true;
}

void Machine::touch(const void* address, Space space, Touch&& how, size_t alignment, uint32_t place) {
  if (is_wrong(address, space, how, alignment, place)) fault(place);
}

void Machine::acquire() {
  for (auto& [group, release] : offered_) known_[group] = std::move(release);
  offered_.clear();
}

void Machine::atomic(const void* address, size_t bytes, Space space, bool writes, size_t alignment, uint32_t place) {
  touch(address, space, {.bytes = bytes, .writes = writes, .atomic = true}, alignment, place);
  if (space == Space::device) {
    Releases& handed_over = by_address_[address];
    for (const auto& [group, release] : handed_over) {
      if (group != group_ + 1) offered_[group] = release;
    }
    if (writes && lanes_[running_].fenced) {
      for (const auto& [group, release] : known_) handed_over[group] = release;
      handed_over[group_ + 1] = {actor(space, place), clocks(space).since};
    }
  }
  fibers().leave();  // so that another thread may run between any two atomic operations
}

void Machine::barrier(bool simdgroup_only, uint32_t memory, uint32_t place) {
  Lane& lane = lanes_[running_];
  lane.meeting = Meeting::barrier;
  lane.argument = memory;
  lane.place = place;
  meet(simdgroup_only ? State::at_simdgroup : State::at_threadgroup);
}

void Machine::fence(uint32_t memory) {
  if ((memory & 1) == 0) return;
  lanes_[running_].fenced = true;
  acquire();
}

uint32_t Machine::gather(const void* value, void* all, size_t bytes, uint32_t place) {
  Lane& lane = lanes_[running_];
  lane.meeting = Meeting::gather;
  lane.in = value;
  lane.out = all;
  lane.bytes = bytes;
  lane.place = place;
  const uint32_t first = running_ / lanes * lanes;
  meet(State::at_simdgroup);
  return std::min(lanes, threads_ - first);
}

void Machine::shuffle(const void* value, void* result, size_t bytes, uint32_t from, uint32_t place) {
  Lane& lane = lanes_[running_];
  lane.meeting = Meeting::shuffle;
  lane.in = value;
  lane.out = result;
  lane.bytes = bytes;
  lane.argument = from;
  lane.place = place;
  meet(State::at_simdgroup);
}

void Machine::matrix_memory(void* elements, const void* address, unsigned type, Space space,
                            std::array<int64_t, 4> matrix, bool writes, uint32_t place) {
  Lane& lane = lanes_[running_];
  lane.meeting = Meeting::matrix_memory;
  lane.in = address;
  lane.out = elements;
  lane.matrix = matrix;
  lane.argument = type | (writes ? 4u : 0u) | static_cast<uint32_t>(space) << 3;
  lane.place = place;
  meet(State::at_simdgroup);
  if (lane.moved) return;
  const size_t size = bytes_of(type);
  for (unsigned i = 0; i < 2; ++i) {
    auto* const in_memory =
        static_cast<std::byte*>(const_cast<void*>(address)) + matrix_offset(lane, running_ % lanes, i);
    auto* const in_lane = static_cast<std::byte*>(elements) + i * size;
    touch(in_memory, space, {.bytes = size, .writes = writes}, size, place);
    std::memcpy(writes ? in_memory : in_lane, writes ? in_lane : in_memory, size);
  }
}

void Machine::multiply(const void* const* matrices, void* result, uint32_t types, uint32_t place) {
  Lane& lane = lanes_[running_];
  lane.meeting = Meeting::multiply;
  lane.in = static_cast<const void*>(matrices);
  lane.out = result;
  lane.argument = types;
  lane.place = place;
  meet(State::at_simdgroup);
}

void Machine::bad_number(uint32_t operation, uint32_t place) {
  static constexpr std::string_view names[] = {"an addition", "a subtraction", "a multiplication", "a division",
                                               "a remainder", "a comparison",  "a function"};
  if (operation < std::size(names)) {
    fault_ = fmt::format("number: {} has infinity or NaN in {}; fast mathematics assumes finite numbers", who(running_),
                         names[operation]);
  } else {
    fault_ = fmt::format("number: {} divides an integer by zero, or the least integer by -1", who(running_));
  }
  fault(place);
}

// ---- the symbols

Space space_of(uint32_t number) { return static_cast<Space>(number); }

extern "C" {
static void msl_touch(const void* address, uint64_t bytes, uint32_t what, uint32_t place) {
  machine->touch(address, space_of(what & 3),
                 {.bytes = bytes, .writes = (what >> 2 & 1) != 0, .coherent = (what >> 3 & 1) != 0}, what >> 8, place);
}
static void msl_atomic(const void* address, uint64_t bytes, uint32_t what, uint32_t place) {
  machine->atomic(address, bytes, space_of(what & 3), (what >> 2 & 1) != 0, what >> 8, place);
}
static void msl_bad_number(uint32_t operation, uint32_t place) { machine->bad_number(operation, place); }
static void msl_barrier(uint32_t simdgroup_only, uint32_t memory, uint32_t place) {
  machine->barrier(simdgroup_only != 0, memory, place);
}
static void msl_fence(uint32_t memory, uint32_t) { machine->fence(memory); }
static uint32_t msl_gather(const void* value, void* all, uint32_t bytes, uint32_t place) {
  return machine->gather(value, all, bytes, place);
}
static void msl_shuffle(const void* value, void* result, uint32_t bytes, uint32_t from, uint32_t place) {
  machine->shuffle(value, result, bytes, from, place);
}
static uint32_t msl_lane() { return machine->lane_number(); }
static void msl_matrix_load(void* elements, const void* from, uint32_t type, uint32_t space, int64_t row_elements,
                            int64_t column, int64_t row, uint32_t transposed, uint32_t place) {
  machine->matrix_memory(elements, from, type, space_of(space), {row_elements, column, row, transposed}, false, place);
}
static void msl_matrix_store(const void* elements, void* to, uint32_t type, uint32_t space, int64_t row_elements,
                             int64_t column, int64_t row, uint32_t transposed, uint32_t place) {
  machine->matrix_memory(const_cast<void*>(elements), to, type, space_of(space),
                         {row_elements, column, row, transposed}, true, place);
}
static void msl_matrix_multiply(void* d, const void* a, const void* b, const void* c, uint32_t types, uint32_t place) {
  const void* const operands[] = {a, b, c};
  machine->multiply(operands, d, types, place);
}
static float msl_precise_exp10(float x) { return std::pow(10.0f, x); }
static float msl_precise_divide(float x, float y) { return x / y; }
}

template <typename Function>
std::pair<std::string, const void*> symbol(const char* name, Function* function) {
  return {name, reinterpret_cast<const void*>(function)};
}

}  // namespace

// Stands for __truncsfbf2() of the compiler's run-time library, which rounds a float to a bfloat. Older libraries lack
// that function. Both x86 and ARM return a bfloat in the low half of the register that returns a float.
float msl_bfloat(float value) {
  const uint32_t bits = bfloat_bits(value);
  float returned;
  std::memcpy(&returned, &bits, sizeof returned);
  return returned;
}

std::vector<std::pair<std::string, const void*>> machine_symbols() {
  using Unary = float(float);
  using Binary = float(float, float);
  return {{"msl_arena", arena},
          symbol("__truncsfbf2", &msl_bfloat),
          symbol("msl_touch", &msl_touch),
          symbol("msl_atomic", &msl_atomic),
          symbol("msl_bad_number", &msl_bad_number),
          symbol("msl_barrier", &msl_barrier),
          symbol("msl_fence", &msl_fence),
          symbol("msl_gather", &msl_gather),
          symbol("msl_shuffle", &msl_shuffle),
          symbol("msl_lane", &msl_lane),
          symbol("msl_matrix_load", &msl_matrix_load),
          symbol("msl_matrix_store", &msl_matrix_store),
          symbol("msl_matrix_multiply", &msl_matrix_multiply),
          symbol<Unary>("msl_precise_exp", &std::exp),
          symbol<Unary>("msl_precise_exp2", &std::exp2),
          symbol<Unary>("msl_precise_exp10", &msl_precise_exp10),
          symbol<Unary>("msl_precise_log", &std::log),
          symbol<Unary>("msl_precise_log2", &std::log2),
          symbol<Unary>("msl_precise_log10", &std::log10),
          symbol<Unary>("msl_precise_sin", &std::sin),
          symbol<Unary>("msl_precise_cos", &std::cos),
          symbol<Unary>("msl_precise_tan", &std::tan),
          symbol<Unary>("msl_precise_asin", &std::asin),
          symbol<Unary>("msl_precise_acos", &std::acos),
          symbol<Unary>("msl_precise_atan", &std::atan),
          symbol<Unary>("msl_precise_sinh", &std::sinh),
          symbol<Unary>("msl_precise_cosh", &std::cosh),
          symbol<Unary>("msl_precise_tanh", &std::tanh),
          symbol<Unary>("msl_precise_asinh", &std::asinh),
          symbol<Unary>("msl_precise_acosh", &std::acosh),
          symbol<Unary>("msl_precise_atanh", &std::atanh),
          symbol<Unary>("msl_precise_sqrt", &std::sqrt),
          symbol<Binary>("msl_precise_pow", &std::pow),
          symbol<Binary>("msl_precise_atan2", &std::atan2),
          symbol<Binary>("msl_precise_fmod", &std::fmod),
          symbol<Binary>("msl_precise_divide", &msl_precise_divide)};
}

void run_on_machine(const Code& code, const Run& run) {
  const std::lock_guard lock(running);
  Machine own(code, run);
  machine = &own;
  own.run();
}

}  // namespace attn::msl
