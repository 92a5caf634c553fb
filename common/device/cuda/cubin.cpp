#include "common/device/cuda/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/device/cuda/scratch.h"
#include "common/device/instruction_class.h"

namespace attn {

namespace {

struct Section {
  std::string name, content;
};

std::vector<Section> sections_of(const std::string& cubin) {
  const auto at = [&]<typename T>(size_t offset, T) {
    T value{};
    if (offset <= cubin.size() && sizeof value <= cubin.size() - offset) {
      std::memcpy(&value, cubin.data() + offset, sizeof value);
    }
    return value;
  };
  const auto header = at(0, Elf64_Ehdr{});
  const auto section = [&](size_t i) { return at(header.e_shoff + i * header.e_shentsize, Elf64_Shdr{}); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  std::vector<Section> sections;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    sections.push_back({cubin.c_str() + std::min(names.sh_offset + found.sh_name, cubin.size()),
                        cubin.substr(std::min(found.sh_offset, cubin.size()), found.sh_size)});
  }
  return sections;
}

// What a program prints; nothing where it is not there.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = popen((command + " 2> /dev/null").c_str(), "r");
  if (!pipe) return text;
  char buffer[1 << 16];
  for (size_t bytes = 0; (bytes = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, bytes);
  return pclose(pipe) == 0 ? text : std::string();
}

// The sections whose names begin with one of these, with their names.
std::string joined(const std::string& cubin, std::initializer_list<std::string_view> beginnings) {
  std::string code;
  for (const auto& [name, content] : sections_of(cubin)) {
    const auto begins = [&name = name](std::string_view beginning) { return name.starts_with(beginning); };
    if (std::any_of(beginnings.begin(), beginnings.end(), begins)) code += name + '\n' + content;
  }
  return code;
}

}  // namespace

std::string machine_code(const std::string& cubin) { return joined(cubin, {".text", ".nv.constant"}); }

std::string instructions_of(const std::string& cubin) { return joined(cubin, {".text"}); }

CodeContents cuda_contents(const Binary& binary) {
  CodeContents found;
  found.bytes = 0;
  for (const auto& [name, content] : sections_of(binary.code)) {
    if (name.starts_with(".text")) found.bytes += static_cast<int64_t>(content.size());
  }
  const auto folder = scratch_folder();
  if (!folder) return found;
  const std::string cubin = folder->path() / "cubin";
  std::ofstream(cubin, std::ios::binary) << binary.code;
  std::istringstream lines(output_of("PATH=\"$PATH:/usr/local/cuda/bin\" nvdisasm " + cubin));
  for (std::string line; std::getline(lines, line);) {
    //         /*0090*/              @!P0 LDG.E.64 R4, desc[UR4][R2.64] ;
    const size_t comment = line.find_first_not_of(" \t");
    if (comment == std::string::npos || line.compare(comment, 2, "/*") != 0) continue;
    std::istringstream words(line.substr(std::min(line.find("*/", comment), line.size() - 2) + 2));
    std::string word;
    words >> word;
    if (word.starts_with('@')) words >> word;
    for (const std::string& one : sass_classes(word.substr(0, word.find(';')))) ++found.classes[one];
    if (word = word.substr(0, word.find_first_of(".;")); !word.empty()) ++found.instructions[word];
  }
  return found;
}

}  // namespace attn
