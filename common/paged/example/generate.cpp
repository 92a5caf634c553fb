// How a program generates with a paged cache: a prompt, a fork of the prompt's sequence, and steps of one token for
// both sequences. Queries, and the keys and values of each token, are random here; a model would compute them.
//
//   paged_example [DEVICE]     default: cpu
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/data/tensor.h"
#include "common/device/device.h"
#include "common/device/encoder.h"
#include "common/device/pipeline_cache.h"
#include "common/paged/cache.h"
#include "common/paged/decode.h"

namespace attn {
namespace {

constexpr int64_t sequences = 4, q_heads = 8, kv_heads = 2, head_dim = 128, page_size = 16, max_pages = 16;
constexpr int64_t row = kv_heads * head_dim;  // elements of a row of the pool: the keys, or the values, of a token
constexpr DType dtype = DType::bf16;
constexpr int64_t element = 2;  // bytes

Tensor drawn(int64_t batch, int64_t heads, int64_t stream) {
  return random_tensor(batch, heads, 1, head_dim, dtype, Layout::bhsd, 1, static_cast<uint64_t>(stream));
}

/// K and V on a device: [pages, page_size, kv_heads, head_dim] each.
class Pool {
 public:
  Pool(Device& device, int64_t pages)
      : device_(device), k_(device, pages * page_size * row * element), v_(device, pages * page_size * row * element) {}

  /// Makes the copy that append() returned. The copy goes through the host here; a real program would copy on the
  /// device.
  void copy(const PageCopy& page) {
    std::vector<std::byte> slots(static_cast<size_t>(page.tokens * row * element));
    for (const Buffer* pool : {&k_, &v_}) {
      device_.download(slots.data(), slot(*pool, {page.from, 0}), slots.size());
      device_.upload(slot(*pool, {page.to, 0}), slots.data(), slots.size());
    }
  }
  void write(const TokenPlace& place, const Tensor& k, const Tensor& v) {
    device_.upload(slot(k_, place), k.data.data(), k.bytes());
    device_.upload(slot(v_, place), v.data.data(), v.bytes());
  }
  const void* k() const { return k_.data(); }
  const void* v() const { return v_.data(); }

 private:
  static std::byte* slot(const Buffer& pool, const TokenPlace& place) {
    return static_cast<std::byte*>(pool.data()) + (place.page * page_size + place.slot) * row * element;
  }

  Device& device_;
  Buffer k_, v_;
};

int generate(const std::string& spec) {
  const std::unique_ptr<Device> device = Device::open(spec);
  PipelineCache pipelines(*device, PipelineCache::default_folder());

  constexpr int64_t pages = sequences * max_pages;
  PagedKvCache cache({.pages = pages, .page_size = page_size, .max_sequences = sequences, .max_pages = max_pages});
  Pool pool(*device, pages);
  Buffer table(*device, cache.table().size() * sizeof(int32_t)), lengths(*device, sequences * sizeof(int32_t));
  table.upload(cache.table().data(), table.bytes());  // all entries are -1; later uploads are only the changes

  // One DecodeLaunch serves all steps, because its kernel reads lengths and table on the device. On a GPU the launch
  // can be captured in a graph.
  const DecodeConfig config{.shape = {.batch = sequences,
                                      .q_heads = q_heads,
                                      .kv_heads = kv_heads,
                                      .q_len = 1,
                                      .kv_len = max_pages * page_size,
                                      .head_dim = head_dim,
                                      .causal = true},
                            .dtype = dtype,
                            .cache_dtype = dtype,
                            .out_dtype = dtype,
                            .page_size = page_size};
  const DecodeLaunch attend(*device, pipelines, config,
                            decode_plan(config, device->info(), sequences * config.shape.kv_len));

  const auto append = [&](SequenceId id, int64_t token) {
    if (const auto page = cache.append(id, 1)) pool.copy(*page);
    pool.write(cache.place(id, cache.length(id) - 1), drawn(1, kv_heads, 3 * token), drawn(1, kv_heads, 3 * token + 1));
  };
  Tensor q = drawn(sequences, q_heads, 2), o = q;
  Buffer queries(*device, q.bytes()), outputs(*device, o.bytes());
  const auto step = [&] {
    for (const TableSpan& span : cache.take_changes()) {
      const int64_t first = span.row * max_pages + span.first;
      device->upload(static_cast<int32_t*>(table.data()) + first, cache.table().data() + first,
                     static_cast<size_t>(span.last - span.first) * sizeof(int32_t));
    }
    lengths.upload(cache.lengths().data(), lengths.bytes());
    queries.upload(q.data.data(), q.bytes());
    const Strides strides = {.batch = page_size * row, .head = head_dim, .row = row};  // of a page, a head, a token
    CommandEncoder encoder;
    attend.encode(encoder, {.q = queries.data(),
                            .o = outputs.data(),
                            .q_strides = q.strides(),
                            .o_strides = o.strides(),
                            .k = pool.k(),
                            .v = pool.v(),
                            .k_strides = strides,
                            .v_strides = strides,
                            .table = static_cast<const int*>(table.data()),
                            .max_pages = max_pages,
                            .pages = pages,
                            .lengths = static_cast<const int*>(lengths.data())});
    device->submit(encoder);
    outputs.download(o.data.data(), o.bytes());
  };

  const SequenceId first = cache.create();
  int64_t token = 0;
  while (token < 40) append(first, token++);    // the prompt; a model would also attend here (PrefillLaunch)
  const SequenceId second = cache.fork(first);  // the fork shares all three pages of the prompt
  // Both sequences get the same query, so their outputs are equal as long as their tokens are equal.
  std::copy_n(q.data.begin() + q.offset(first.row, 0, 0, 0) * element, q_heads * head_dim * element,
              q.data.begin() + q.offset(second.row, 0, 0, 0) * element);
  double apart = 0;
  for (int i = 0; i < 8; ++i, token += 2) {
    append(first, token);
    append(second, i < 4 ? token : token + 1);
    step();
    apart = 0;
    for (int64_t h = 0; h < q_heads; ++h) {
      for (int64_t d = 0; d < head_dim; ++d) {
        apart = std::max(apart, std::abs(o.at(first.row, h, 0, d) - o.at(second.row, h, 0, d)));
      }
    }
    const CacheFigures figures = cache.figures();
    fmt::print(
        "2 sequences of {} tokens on {} pages, {} shared; {:.0f} % of the slots empty; outputs differ by {:.2f}\n",
        cache.length(first), figures.used_pages, figures.shared_pages, 100 * figures.waste, apart);
    const bool alike = apart < 0.02;
    if (alike != (i < 4)) return 1;
  }
  cache.free(first);
  cache.free(second);
  return 0;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  try {
    return attn::generate(argc > 1 ? argv[1] : "cpu");
  } catch (const std::exception& error) {
    fmt::print(stderr, "paged_example: {}\n", error.what());
    return 1;
  }
}
