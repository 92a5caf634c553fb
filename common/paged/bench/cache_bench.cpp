// The host's time for the bookkeeping of a paged KV cache. A decode step of 256 sequences should stay below 50 us.
#include <benchmark/benchmark.h>

#include <vector>

#include "common/paged/cache.h"

namespace attn {
namespace {

constexpr int64_t page_size = 16, context = 1024, max_length = 2048;

/// Makes `count` sequences of `context` to `context` + 15 tokens, such that in each of the next 16 steps a sixteenth of
/// the sequences takes a page.
std::vector<SequenceId> fill(PagedKvCache& cache, int64_t count) {
  std::vector<SequenceId> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(cache.create());
    cache.append(ids.back(), context + i % page_size);
  }
  cache.take_changes();
  return ids;
}

PagedKvCache cache_for(int64_t sequences) {
  const int64_t max_pages = max_length / page_size;
  return PagedKvCache(
      {.pages = sequences * max_pages, .page_size = page_size, .max_sequences = sequences, .max_pages = max_pages});
}

// Appends one token to each of state.range(0) sequences, and takes the changes of the table.
void decode_step(benchmark::State& state) {
  PagedKvCache cache = cache_for(state.range(0));
  const std::vector<SequenceId> ids = fill(cache, state.range(0));
  int64_t steps = 0;
  for (auto _ : state) {
    for (const SequenceId id : ids) benchmark::DoNotOptimize(cache.append(id, 1));
    benchmark::DoNotOptimize(cache.take_changes());
    if (++steps % (max_length - context - page_size) == 0) {
      state.PauseTiming();
      for (size_t i = 0; i < ids.size(); ++i) cache.truncate(ids[i], context + i % page_size);
      state.ResumeTiming();
    }
  }
}
BENCHMARK(decode_step)->Arg(256)->Unit(benchmark::kMicrosecond);

// Forks a sequence of state.range(0) tokens, appends one token to the fork, and frees the fork. The append asks for a
// copy of the last page.
void fork_append_free(benchmark::State& state) {
  PagedKvCache cache = cache_for(2);
  const SequenceId parent = cache.create();
  cache.append(parent, state.range(0));
  for (auto _ : state) {
    const SequenceId child = cache.fork(parent);
    if (!cache.append(child, 1)) state.SkipWithError("append() on a fork returned no copy");
    cache.free(child);
  }
}
BENCHMARK(fork_append_free)->Arg(context + 1)->Unit(benchmark::kMicrosecond);

// Makes a sequence, appends a prompt of state.range(0) tokens, and frees the sequence.
void create_append_free(benchmark::State& state) {
  PagedKvCache cache = cache_for(2);
  for (auto _ : state) {
    const SequenceId id = cache.create();
    cache.append(id, state.range(0));
    cache.free(id);
  }
}
BENCHMARK(create_append_free)->Arg(context)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace attn
