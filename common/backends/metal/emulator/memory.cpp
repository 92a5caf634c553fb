#include "common/backends/metal/emulator/memory.h"

#include <algorithm>
#include <utility>

namespace attn::msl {

std::string_view name(Space space) {
  switch (space) {
    case Space::thread:
      return "thread";
    case Space::device:
      return "device";
    case Space::constant:
      return "constant";
    case Space::threadgroup:
      return "threadgroup";
  }
  return "";
}

namespace {

// Whether the touch `earlier` comes before the actor's touch in every order of threads. Program order or a barrier
// orders two touches of one threadgroup. A release that the actor's threadgroup has seen (`known`) orders touches of
// two threadgroups.
bool came_before(const Actor& earlier, const Actor& actor, const Clocks& clocks, const Releases& known) {
  if (earlier.group == actor.group) {
    if (earlier.thread == actor.thread) return true;
    if (earlier.simdgroup() == actor.simdgroup()) return earlier.clock < actor.clock;
    return earlier.clock < clocks.since[earlier.simdgroup()];
  }
  const auto found = known.find(earlier.group);
  if (found == known.end()) return false;
  const Release& release = found->second;
  if (earlier.thread == release.actor.thread) return earlier.clock <= release.actor.clock;
  if (earlier.simdgroup() == release.actor.simdgroup()) return earlier.clock < release.actor.clock;
  return earlier.clock < release.since[earlier.simdgroup()];
}

}  // namespace

Region::Page& Region::page_of(size_t offset, unsigned shift) {
  const size_t number = offset / page_bytes;
  if (!last_ || last_->number != number) {
    std::unique_ptr<Page>& page = pages_[number];
    if (!page) {
      page = std::make_unique<Page>();
      page->number = number;
    }
    last_ = page.get();
  }
  Page& page = *last_;
  if (shift < page.shift) {
    std::vector<Unit> smaller(page_bytes >> shift);
    for (size_t i = 0; i < smaller.size(); ++i) smaller[i] = page.units[i >> (page.shift - shift)];
    page.units = std::move(smaller);
    page.shift = shift;
  }
  return page;
}

bool Region::is_written(size_t offset, size_t bytes) const {
  for (size_t at = offset; at < offset + bytes;) {
    if (!last_ || last_->number != at / page_bytes) {
      const auto page = pages_.find(at / page_bytes);
      if (page == pages_.end()) return false;
      last_ = page->second.get();
    }
    if (last_->units[at % page_bytes >> last_->shift].writer.group == 0) return false;
    at = ((at >> last_->shift) + 1) << last_->shift;
  }
  return true;
}

bool Region::conflicts(Unit& unit, const Touch& touch, const Actor& actor, const Clocks& clocks, const Releases& known,
                       Conflict& conflict) {
  const auto before = [&](const Actor& earlier) {
    return earlier.group == 0 || came_before(earlier, actor, clocks, known);
  };
  if (!(touch.atomic && unit.wrote_atomic) && !before(unit.writer)) {
    conflict = {unit.writer, true};
    return true;
  }
  // Device memory is coherent within a threadgroup only. What another threadgroup wrote may still lie in its cache, and
  // this threadgroup's cache may hold the bytes from before, unless both touches pass the caches.
  const bool coherent = touch.coherent || touch.atomic;
  if (unit.writer.group != 0 && unit.writer.group != actor.group && !(coherent && unit.wrote_coherent)) {
    conflict = {unit.writer, true, true};
    return true;
  }
  const bool read_before = before(unit.reader);
  if (touch.writes) {
    bool free = touch.atomic && unit.read_atomic;
    if (!free) {
      // Several threads may have read since the last barrier. The unit notes only the last reader, and the smallest
      // group that includes all readers. The write conflicts unless it comes after the reads of that whole group.
      const bool same_group = unit.reader.group == actor.group;
      const bool same_simdgroup = same_group && unit.reader.simdgroup() == actor.simdgroup();
      switch (unit.readers) {
        case one:
          free = read_before;
          break;
        case of_simdgroup:
          free = unit.reader.group == 0 || (same_simdgroup ? unit.reader.clock < actor.clock : read_before);
          break;
        case of_threadgroup:
          free = same_group && unit.reader.clock < clocks.since[unit.reader.simdgroup()];
          break;
        case of_grid:
          free = false;
          break;
      }
    }
    if (!free) {
      conflict = {unit.reader, false};
      return true;
    }
    unit.writer = actor;
    unit.wrote_atomic = touch.atomic;
    unit.wrote_coherent = coherent;
    return false;
  }
  const Actor& reader = unit.reader;
  Readers readers = one;
  if (reader.group != 0 && reader.group != actor.group) {
    readers = read_before ? one : of_grid;
  } else if (reader.group == actor.group && reader.clock >= clocks.since[reader.simdgroup()]) {
    if (reader.simdgroup() != actor.simdgroup() || unit.readers == of_threadgroup) {
      readers = of_threadgroup;
    } else if (reader.clock == actor.clock && (reader.thread != actor.thread || unit.readers == of_simdgroup)) {
      readers = of_simdgroup;
    }
  }
  if (unit.readers == of_grid) readers = of_grid;
  unit.read_atomic = touch.atomic && (readers == one || unit.read_atomic);
  unit.readers = readers;
  unit.reader = actor;
  return false;
}

bool Region::touch(const Touch& touch, const Actor& actor, const Clocks& clocks, const Releases& known,
                   Conflict& conflict) {
  const size_t parts = touch.offset | touch.bytes;
  const unsigned shift = parts % 4 == 0 ? 2 : parts % 2 == 0 ? 1 : 0;
  for (size_t at = touch.offset; at < touch.offset + touch.bytes;) {
    Page& page = page_of(at, shift);
    const size_t end = std::min(touch.offset + touch.bytes, (page.number + 1) * page_bytes);
    for (; at < end; at += size_t{1} << page.shift) {
      if (conflicts(page.units[at % page_bytes >> page.shift], touch, actor, clocks, known, conflict)) {
        conflict.offset = at;
        return true;
      }
    }
  }
  return false;
}

}  // namespace attn::msl
