#include "common/attention/mask_lists.h"

#include <cctype>
#include <memory>
#include <string>
#include <utility>

#include "common/base/divided_up.h"

namespace attn {
namespace {

/// Whether the text has the name as a whole identifier.
bool names(const std::string& text, const std::string& name) {
  const auto part_of_name = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_');
  };
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    if ((at == 0 || !part_of_name(at - 1)) && !part_of_name(at + name.size())) return true;
  }
  return false;
}

}  // namespace

KernelSource with_hooks_of(const KernelSource& attention, const std::string& path, const std::string& entry) {
  KernelSource source;
  source.path = path;
  source.entry = entry;
  source.includes = attention.includes;
  source.linking = attention.linking;
  source.guarded = attention.guarded;
  // A kernel does not compile if it is given a constant that its text does not use. A user's text uses no constant, but
  // may have names like theirs.
  KernelSource own = source;
  own.includes.erase(users_text);
  const std::string text = expanded_text(own);
  for (const auto& [name, value] : attention.constants) {
    if (names(text, name)) source.constants[name] = value;
  }
  for (const std::string& name : attention.run_time) {
    if (names(text, name)) source.run_time.insert(name);
  }
  for (const KernelSource& fragment : attention.fragments) {
    if (names(text, fragment.entry)) source.fragments.push_back(fragment);
  }
  return source;
}

Launch mask_launch(const FlashConfig& config, const DeviceInfo& device, const Launch& attention, ListScope scope) {
  const AttentionShape& shape = config.shape;
  Launch launch{.source = {},
                .grid = {static_cast<uint32_t>(config.row_tiles()),
                         static_cast<uint32_t>(scope == ListScope::head ? shape.q_heads : 1),
                         static_cast<uint32_t>(scope == ListScope::all ? 1 : shape.batch)},
                .threads = device.operations->mask_list_threads.value(),
                .phase = "mask_blocks"};
  launch.source = with_hooks_of(attention.source,
                                device.operations->kernel_file("common/attention/kernels/mask_blocks"), "mask_blocks");
  return launch;
}

FlashOperation::Lists mask_lists(Device& device, const FlashConfig& config, const Launch& launch,
                                 const Kernel& kernel) {
  struct Kept {
    Buffer counts, entries;
    const void* data = nullptr;
  };
  const int64_t capacity = divided_up(config.shape.kv_len, config.block_c);
  const uint64_t count = launch.grid.count();
  MaskLists lists{.counts = nullptr,
                  .entries = nullptr,
                  .capacity = static_cast<int>(capacity),
                  .rows = static_cast<int>(config.block_r),
                  .first_query = static_cast<int>(FlashOperation::of(device.info()).first_query(config, device.info())),
                  .of_batch = static_cast<int>(launch.grid.z > 1 ? launch.grid.x * launch.grid.y : 0),
                  .of_head = static_cast<int>(launch.grid.y > 1 ? launch.grid.x : 0)};
  const auto kept = std::make_shared<Kept>();
  return [&device, launch, &kernel, lists, capacity, count, kept](const AttentionParams& params) mutable {
    if (kept->counts.data() != nullptr && kept->data == params.score_data) return lists;
    if (kept->counts.data() == nullptr) {
      kept->counts = Buffer(device, count * sizeof(int));
      kept->entries = Buffer(device, count * static_cast<uint64_t>(capacity) * sizeof(int));
    }
    kept->data = params.score_data;
    lists.counts = static_cast<int*>(kept->counts.data());
    lists.entries = static_cast<int*>(kept->entries.data());
    CommandEncoder encoder;
    encoder.dispatch(kernel, launch.grid, launch.threads, 0,
                     MaskBlocksParams{.q_heads = params.q_heads,
                                      .q_len = params.q_len,
                                      .kv_len = params.kv_len,
                                      .data = params.score_data,
                                      .lists = lists});
    device.submit(encoder);
    return lists;
  };
}

}  // namespace attn
