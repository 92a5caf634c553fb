#include "common/api/engine.h"

#include <pthread.h>

#include <memory>
#include <mutex>
#include <utility>

#include "common/api/engine_state.h"
#include "common/base/error.h"

namespace attn {

Engine::Engine(std::string spec, EngineOptions options) : spec_(std::move(spec)), options_(std::move(options)) {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)watched;
  state_ = new State(spec_, options_);
}

// After a fork the child has none of the parent's other threads. A lock that such a thread held at the fork stays
// locked in the child. So the child neither uses the locks of the old state nor deletes this state.
Engine::~Engine() {
  const State* const own = state_.load();
  if (own->born == forks.load(std::memory_order_relaxed)) delete own;
}

Engine::State& Engine::state() {
  State* old = state_.load(std::memory_order_acquire);
  if (old->born == forks.load(std::memory_order_relaxed)) return *old;
  if (!old->device->info().on_host) {
    throw DeviceMissing(spec_ + ": a process that was forked after the first use of CUDA has no GPU; spawn it instead");
  }
  EngineOptions options = options_;
  options.caller = {};  // the child may lack the caller's threads too
  auto fresh = std::make_unique<State>(spec_, options);
  if (state_.compare_exchange_strong(old, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *old;
}

const DeviceInfo& Engine::info() { return device().info(); }
Device& Engine::device() { return *state().device; }

size_t Engine::prepared() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  return own.ready.size();
}

uint64_t Engine::launches() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  return own.launches;
}

size_t Engine::prepared_bytes() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  size_t bytes = 0;
  for (const auto& [key, prepared] : own.ready) bytes += prepared->bytes;
  return bytes;
}

void Engine::save_archive(const std::string& path) { state().pipelines.archive().save(path); }

void Engine::empty(void* stream) {
  State& own = state();
  own.run(
      Key(Key::empty, stream, 0), stream, [](Prepared&) {},
      [&](const Prepared&, CommandEncoder& encoder) { own.do_nothing(encoder); });
}

}  // namespace attn
