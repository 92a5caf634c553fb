#include "common/backends/cuda/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/backends/cuda/scratch.h"
#include "common/base/shell.h"
#include "common/device/instruction_class.h"

namespace attn {

namespace {

struct Section {
  std::string name, content;
  size_t bytes = 0;     // also set for a section without content, which takes memory only at run time
  uint32_t kernel = 0;  // for a section of code: the kernel's number among the symbols
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
                        found.sh_type == SHT_NOBITS
                            ? std::string()
                            : cubin.substr(std::min(found.sh_offset, cubin.size()), found.sh_size),
                        found.sh_size, found.sh_info & 0xffffff});
  }
  return sections;
}

// Returns the output of a program, or an empty text if the program is missing or fails.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = popen((command + " 2> /dev/null").c_str(), "r");
  if (!pipe) return text;
  char buffer[1 << 16];
  for (size_t bytes = 0; (bytes = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, bytes);
  return pclose(pipe) == 0 ? text : std::string();
}

// Returns names and contents of the sections whose names begin with a text of `beginnings`.
std::string joined(const std::string& cubin, std::initializer_list<std::string_view> beginnings) {
  std::string code;
  for (const Section& section : sections_of(cubin)) {
    const auto begins = [&](std::string_view beginning) { return section.name.starts_with(beginning); };
    if (std::any_of(beginnings.begin(), beginnings.end(), begins)) code += section.name + '\n' + section.content;
  }
  return code;
}

}  // namespace

std::string machine_code(const std::string& cubin) { return joined(cubin, {".text", ".nv.constant"}); }

std::string instructions_of(const std::string& cubin) { return joined(cubin, {".text"}); }

bool read_resources(const std::string& cubin, const std::string& entry, Binary& binary) {
  if (!cubin.starts_with(ELFMAG)) return false;
  constexpr size_t reserved = 1024;  // bytes of each threadgroup's memory that the driver reserves
  const std::vector<Section> sections = sections_of(cubin);
  const auto named = [&](const std::string& name) {
    return std::find_if(sections.begin(), sections.end(), [&](const Section& one) { return one.name == name; });
  };
  const auto code = named(".text." + entry), info = named(".nv.info"), memory = named(".nv.shared." + entry);
  if (code == sections.end() || info == sections.end()) return false;
  binary.threadgroup_bytes =
      memory == sections.end() ? 0 : static_cast<int64_t>(memory->bytes - std::min(memory->bytes, reserved));
  // An attribute of the format `sized` consists of the format, the number of its kind, the size of its payload in
  // bytes, and the payload. The payloads that this function reads have 8 bytes: the kernel's number among the symbols,
  // and a count (`value`). An attribute of another format has 4 bytes.
  struct Attribute {
    uint8_t format, number;
    uint16_t bytes;
    uint32_t kernel, value;
  };
  constexpr uint8_t sized = 4, frame_bytes = 0x11, registers = 0x2f;
  for (size_t at = 0; at + sizeof(Attribute) <= info->content.size();) {
    Attribute found{};
    std::memcpy(&found, info->content.data() + at, sizeof found);
    at += 4 + (found.format == sized ? found.bytes : 0);
    if (found.format != sized || found.bytes != 8 || found.kernel != code->kernel) continue;
    if (found.number == registers) binary.registers = static_cast<int>(found.value);
    if (found.number == frame_bytes) binary.spill_bytes = found.value;
  }
  return true;
}

std::string undefined_function(const std::string& cubin) {
  const std::vector<Section> sections = sections_of(cubin);
  const auto content = [&](std::string_view name) {
    const auto found =
        std::find_if(sections.begin(), sections.end(), [&](const Section& one) { return one.name == name; });
    return found == sections.end() ? std::string() : found->content;
  };
  const std::string symbols = content(".symtab"), names = content(".strtab");
  for (size_t at = 0; at + sizeof(Elf64_Sym) <= symbols.size(); at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol{};
    std::memcpy(&symbol, symbols.data() + at, sizeof symbol);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx != SHN_UNDEF) continue;
    return names.c_str() + std::min<size_t>(symbol.st_name, names.size());
  }
  return {};
}

CodeContents cuda_contents(const Binary& binary) {
  CodeContents found;
  found.bytes = 0;
  for (const Section& section : sections_of(binary.code)) {
    if (section.name.starts_with(".text")) found.bytes += static_cast<int64_t>(section.bytes);
  }
  const auto folder = scratch_folder();
  if (!folder) return found;
  const std::string cubin = folder->path() / "cubin";
  std::ofstream(cubin, std::ios::binary) << binary.code;
  std::istringstream lines(output_of("PATH=\"$PATH:/usr/local/cuda/bin\" " + shell_command({"nvdisasm", cubin})));
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
