// Generation as in a server: prompts, steps of one token, forks, sequences that end, and new sequences that take the
// freed pages. After each launch the outputs of every row must equal, within tolerance, the reference's attention over
// the tokens of the row's sequence. If the caller makes a mistake, some row must differ. Runs on the device under test.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/cases/tolerance.h"
#include "common/data/compare.h"
#include "common/paged/cache.h"
#include "common/paged/decode.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"

namespace attn {
namespace {

using test::device;
using test::pipelines;

constexpr int64_t rows = 6, q_heads = 6, kv_heads = 2, dim = 64;
constexpr int64_t chunk = 16;         // tokens of a prompt in one launch
constexpr int64_t most_tokens = 144;  // of a sequence
constexpr uint64_t seed = 11;

/// Mistakes of a caller, which the check must notice.
enum class Mistake {
  none,
  stale_page,       // the table still names the page that was copied on write
  no_copy,          // a page is not copied on write
  freed_too_early,  // a sequence's pages are given back while launches still attend to its row
  stale_length      // a length is not advanced
};

static DecodeLaunch decode_launch(const DecodeConfig& config) {
  return DecodeLaunch(device(), pipelines(), config, decode_plan(config, device().info(), 0));
}
DecodeConfig config_of(DType dtype, int64_t page_size, int64_t q_len) {
  return {.shape = {.batch = rows,
                    .q_heads = q_heads,
                    .kv_heads = kv_heads,
                    .q_len = q_len,
                    .kv_len = most_tokens,
                    .head_dim = dim,
                    .causal = true},
          .dtype = dtype,
          .cache_dtype = dtype,
          .out_dtype = dtype,
          .page_size = page_size};
}

struct History {
  SequenceId id;
  std::vector<uint64_t> tokens;  // numbers; a token's number determines its key and value
};

class Server {
 public:
  Server(DType dtype, int64_t page_size, Mistake mistake = Mistake::none)
      : dtype_(dtype),
        page_size_(page_size),
        mistake_(mistake),
        sizes_{.pages = 5 * most_tokens / page_size,
               .page_size = page_size,
               .max_sequences = rows,
               .max_pages = most_tokens / page_size},
        cache_(sizes_),
        k_(device(), pool_bytes()),
        v_(device(), pool_bytes()),
        table_(device(), cache_.table().size() * sizeof(int32_t)),
        lengths_(device(), rows * sizeof(int32_t)),
        lengths_there_(rows),
        prefill_(decode_launch(config_of(dtype, page_size, chunk))),
        decode_(decode_launch(config_of(dtype, page_size, 1))) {
    table_.upload(cache_.table().data(), table_.bytes());
  }

  History create() { return {cache_.create(), {}}; }
  History fork(const History& parent, size_t tokens) {
    return {cache_.fork(parent.id, static_cast<int64_t>(tokens)),
            {parent.tokens.begin(), parent.tokens.begin() + static_cast<int64_t>(tokens)}};
  }
  void truncate(History& sequence, size_t tokens) {
    cache_.truncate(sequence.id, static_cast<int64_t>(tokens));
    sequence.tokens.resize(tokens);
  }
  void free(const History& sequence) {
    for (const int32_t page : cache_.pages(sequence.id)) {
      if (cache_.holders()[static_cast<size_t>(page)] == 1) freed_.insert(page);
    }
    if (mistake_ == Mistake::freed_too_early) kept_row_ = sequence.id.row;
    cache_.free(sequence.id);
  }

  void append(History& sequence, int64_t tokens) {
    const std::optional<PageCopy> copy = cache_.append(sequence.id, tokens);
    if (copy) {
      ++copies_;
      if (mistake_ != Mistake::no_copy) make(*copy);
      last_copy_ = *copy;
    }
    for (int64_t i = 0; i < tokens; ++i) {
      sequence.tokens.push_back(++drawn_);
      const TokenPlace place = cache_.place(sequence.id, static_cast<int64_t>(sequence.tokens.size()) - 1);
      reused_ += freed_.contains(place.page);
      const int64_t at = (place.page * page_size_ + place.slot) * row_bytes();
      for (const auto& [pool, stream] : {std::pair{&k_, 2 * drawn_}, {&v_, 2 * drawn_ + 1}}) {
        device().upload(static_cast<std::byte*>(pool->data()) + at, drawn(stream).data(),
                        static_cast<size_t>(row_bytes()));
      }
    }
  }

  /// Attends with new queries of every row. Returns the errors in the rows of `live`, and in rows without a sequence.
  Check attend(bool prompt, const std::vector<const History*>& live) {
    for (const TableSpan& span : cache_.take_changes()) upload(span);
    upload_lengths(live);
    const DecodeLaunch& launch = prompt ? prefill_ : decode_;
    const int64_t q_len = prompt ? chunk : 1;
    const Tensor q = random_tensor(rows, q_heads, q_len, dim, dtype_, Layout::bhsd, seed, 1'000'000 + ++launches_);
    Tensor o = q;
    Buffer queries(device(), q.bytes()), outputs(device(), o.bytes()),
        sums(device(), static_cast<size_t>(rows * q_heads * q_len) * sizeof(float));
    queries.upload(q.data.data(), q.bytes());
    const Strides strides{page_size_ * kv_heads * dim, dim, kv_heads * dim};
    CommandEncoder encoder;
    launch.encode(encoder, {.q = queries.data(),
                            .o = outputs.data(),
                            .lse = static_cast<float*>(sums.data()),
                            .q_strides = q.strides(),
                            .o_strides = o.strides(),
                            .k = k_.data(),
                            .v = v_.data(),
                            .k_strides = strides,
                            .v_strides = strides,
                            .table = static_cast<const int*>(table_.data()),
                            .max_pages = sizes_.max_pages,
                            .pages = sizes_.pages,
                            .lengths = static_cast<const int*>(lengths_.data())});
    device().submit(encoder);
    outputs.download(o.data.data(), o.bytes());
    const std::vector<float> lse = downloaded<float>(sums);
    Check check;
    for (int32_t row = 0; row < rows; ++row) {
      const auto of_row = [&](const History* sequence) { return sequence->id.row == row; };
      const auto found = std::ranges::find_if(live, of_row);
      check.merge(check_row(row, found == live.end() ? std::vector<uint64_t>() : (*found)->tokens, q, o, lse));
    }
    if (!launch.at_rest()) check.fail("after the launch one of its counters is not 0, or a guard band was overwritten");
    for (const Buffer* buffer : {&k_, &v_, &table_, &lengths_, &outputs, &sums}) {
      if (!buffer->guards_intact()) check.fail("a guard band was overwritten");
    }
    return check;
  }

  const PagedKvCache& cache() const { return cache_; }
  int copies() const { return copies_; }
  int64_t reused() const { return reused_; }      // tokens written to pages that a freed sequence gave back
  int64_t uploaded() const { return uploaded_; }  // entries of the table that were uploaded

 private:
  int64_t row_bytes() const { return kv_heads * dim * static_cast<int64_t>(size_bytes(dtype_)); }
  size_t pool_bytes() const { return static_cast<size_t>(sizes_.pages * page_size_ * row_bytes()); }

  /// [1, kv_heads, 1, head_dim]: a row of the cache, heads one after the other.
  std::vector<std::byte> drawn(uint64_t stream) const {
    return random_tensor(1, kv_heads, 1, dim, dtype_, Layout::bhsd, seed, stream).data;
  }

  void make(const PageCopy& copy) {
    std::vector<std::byte> slots(static_cast<size_t>(copy.tokens * row_bytes()));
    for (const Buffer* pool : {&k_, &v_}) {
      auto* const pages = static_cast<std::byte*>(pool->data());
      device().download(slots.data(), pages + copy.from * page_size_ * row_bytes(), slots.size());
      device().upload(pages + copy.to * page_size_ * row_bytes(), slots.data(), slots.size());
    }
  }

  void upload(const TableSpan& span) {
    if (span.row == kept_row_) return;
    const int64_t first = span.row * sizes_.max_pages + span.first;
    const auto from = cache_.table().begin() + first;
    std::vector<int32_t> pages(from, from + span.last - span.first);
    if (mistake_ == Mistake::stale_page) std::ranges::replace(pages, last_copy_.to, last_copy_.from);
    device().upload(static_cast<int32_t*>(table_.data()) + first, pages.data(), pages.size() * sizeof(int32_t));
    uploaded_ += span.last - span.first;
  }

  void upload_lengths(const std::vector<const History*>& live) {
    const std::vector<int32_t> before = std::exchange(lengths_there_, cache_.lengths());
    for (const History* sequence : live) {
      int32_t& length = lengths_there_[static_cast<size_t>(sequence->id.row)];
      if (mistake_ == Mistake::freed_too_early) length = static_cast<int32_t>(sequence->tokens.size());
      if (mistake_ == Mistake::stale_length && launches_ == 20 && sequence == live.front()) length = before[0];
    }
    lengths_.upload(lengths_there_.data(), lengths_.bytes());
  }

  /// Compares the outputs of a row of the batch with attention over the row's tokens as one contiguous sequence,
  /// recomputed from the start.
  Check check_row(int32_t row, const std::vector<uint64_t>& tokens, const Tensor& q, const Tensor& o,
                  const std::vector<float>& lse) const {
    AttentionShape shape = config_of(dtype_, page_size_, q.seq).shape;
    shape.batch = 1;
    shape.kv_len = static_cast<int64_t>(tokens.size());
    const auto element = size_bytes(dtype_);
    Tensor queries = Tensor::zeros(1, q_heads, q.seq, dim, dtype_, Layout::bhsd);
    std::memcpy(queries.data.data(), q.data.data() + q.offset(row, 0, 0, 0) * static_cast<int64_t>(element),
                queries.bytes());
    Tensor k = Tensor::zeros(1, kv_heads, shape.kv_len, dim, dtype_, Layout::bshd), v = k;
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::ranges::copy(drawn(2 * tokens[i]), k.data.begin() + static_cast<int64_t>(i) * row_bytes());
      std::ranges::copy(drawn(2 * tokens[i] + 1), v.data.begin() + static_cast<int64_t>(i) * row_bytes());
    }
    const ReferenceRows want = reference_attention(shape, queries, k, v, all_rows(shape));
    std::vector<double> got, got_lse;
    for (const RowIndex& at : want.rows) {
      for (int64_t d = 0; d < dim; ++d) got.push_back(o.at(row, at.head, at.q, d));
      got_lse.push_back(lse[static_cast<size_t>((row * q_heads + at.head) * q.seq + at.q)]);
    }
    const AttentionTolerance allowed = attention_tolerance(shape, dtype_, dtype_, false, want);
    const auto place = [&](size_t i) {
      return fmt::format("row {} of {} tokens, head {}, query {}", row, tokens.size(), want.rows[i].head,
                         want.rows[i].q);
    };
    Check check = compare(got, want.o, allowed.o, [&](size_t i) { return "o of " + place(i / dim); });
    check.merge(compare(got_lse, want.lse, allowed.lse, [&](size_t i) { return "lse of " + place(i); }));
    return check;
  }

  DType dtype_;
  int64_t page_size_;
  Mistake mistake_;
  CacheSizes sizes_;
  PagedKvCache cache_;
  Buffer k_, v_, table_, lengths_;
  std::vector<int32_t> lengths_there_;
  DecodeLaunch prefill_, decode_;
  std::set<int32_t> freed_;
  PageCopy last_copy_{.from = 0, .to = 0, .tokens = 0};
  int32_t kept_row_ = -1;  // this row stays in the table although its sequence was freed
  uint64_t drawn_ = 0, launches_ = 0;
  int copies_ = 0;
  int64_t reused_ = 0, uploaded_ = 0;
};

/// Returns the first error of the first wrong launch, or an empty text.
std::string generate(Server& server, Mistake mistake = Mistake::none) {
  std::string wrong;
  std::vector<History> live;
  const auto attend = [&](const char* what, bool prompt) {
    std::vector<const History*> rows_of;
    for (const History& sequence : live) rows_of.push_back(&sequence);
    const Check check = server.attend(prompt, rows_of);
    if (!check.ok && wrong.empty()) wrong = fmt::format("{}: {}", what, check.worst);
  };
  const auto prefill = [&](const std::vector<std::pair<size_t, int64_t>>& prompts) {  // which sequence, how many tokens
    for (int64_t begun = 0; begun < std::ranges::max(prompts, {}, &std::pair<size_t, int64_t>::second).second;
         begun += chunk) {
      for (const auto& [i, tokens] : prompts) {
        if (begun < tokens) server.append(live[i], std::min(chunk, tokens - begun));
      }
      attend("prompt", true);
    }
  };
  for (int i = 0; i < 4; ++i) live.push_back(server.create());
  prefill({{0, 37}, {1, 1}, {2, 23}, {3, 48}});
  std::optional<size_t> ended;  // a sequence that was freed too early: still attended to, but not appended to
  for (int step = 0; step < 64 && wrong.empty(); ++step) {
    if (step == 10) live.push_back(server.fork(live[0], live[0].tokens.size()));
    if (step == 20) live.push_back(server.fork(live[3], 40));
    if (step == 30) {
      server.free(live[2]);
      if (mistake == Mistake::freed_too_early) {
        ended = 2;
      } else {
        live.erase(live.begin() + 2);
      }
    }
    if (step == 31 && !ended) {
      live.push_back(server.create());
      prefill({{live.size() - 1, 30}});
    }
    if (step == 40) server.truncate(live[1], live[1].tokens.size() - 5);
    if (step == 50) {
      server.free(live[0]);
      live.erase(live.begin());
      if (ended) --*ended;
    }
    for (size_t i = 0; i < live.size(); ++i) {
      if (i != ended) server.append(live[i], 1);
    }
    attend(fmt::format("step {}", step).c_str(), false);
  }
  return wrong;
}

class GenerationTest : public test::OnDevice<testing::Test> {};

TEST_F(GenerationTest, EveryStepIsAttentionOverTheTokensSoFar) {
  test::Some some(5);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t page_size : {1, 16, 24}) {
      if (some.skips()) continue;
      Server server(dtype, page_size);
      EXPECT_EQ(generate(server), "") << name(dtype) << ", page_size " << page_size;
      EXPECT_EQ(server.copies() > 0, page_size > 1)
          << "an append must copy a shared page unless the page is full, as pages of one token always are";
      EXPECT_GT(server.reused(), 0) << "no page was used again";
      EXPECT_LT(server.uploaded(), 3 * most_tokens * rows / page_size)
          << "the uploads have at least as many entries as three whole tables";
    }
  }
}

TEST_F(GenerationTest, MistakesOfACallerAreCaught) {
  for (const auto& [what, mistake] : {std::pair{"a stale page after a copy on write", Mistake::stale_page},
                                      {"no copy on write", Mistake::no_copy},
                                      {"pages given back while in use", Mistake::freed_too_early},
                                      {"a length that is not advanced", Mistake::stale_length}}) {
    for (const int64_t page_size : {16, 24}) {
      Server server(DType::f32, page_size, mistake);
      EXPECT_NE(generate(server, mistake), "") << what << ", page_size " << page_size;
    }
  }
}

}  // namespace
}  // namespace attn
