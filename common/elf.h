// Sections of a 64-bit ELF file (an object file, a cubin), read with care: what is not there is empty.
#pragma once

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace attn {

/// Calls visit(name, flags, bytes) for each section.
template <typename Visit>
void for_each_section(std::string_view file, const Visit& visit) {
  const auto at = [&]<typename T>(size_t offset, T value) {
    if (offset <= file.size() && sizeof value <= file.size() - offset) {
      std::memcpy(&value, file.data() + offset, sizeof value);
    }
    return value;
  };
  const auto header = at(0, Elf64_Ehdr{});
  const auto section = [&](size_t i) { return at(header.e_shoff + i * header.e_shentsize, Elf64_Shdr{}); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    const std::string_view name = file.substr(std::min<size_t>(names.sh_offset + found.sh_name, file.size()));
    visit(name.substr(0, name.find('\0')), found.sh_flags,
          found.sh_type == SHT_NOBITS ? std::string_view()
                                      : file.substr(std::min<size_t>(found.sh_offset, file.size()), found.sh_size));
  }
}

}  // namespace attn
