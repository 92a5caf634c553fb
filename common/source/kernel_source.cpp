#include "common/source/kernel_source.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/sha256.h"
#include "common/source/tokens.h"

namespace attn {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view assembler_key = "assembler";  // differs from all constants, whose names are upper case
const std::string at_run_time = "run_time";

/// The hash of a replaced header in a key.
std::string short_hash(const std::string& text) { return sha256(text).substr(0, 8); }

template <typename Entries>
auto place_of(Entries& entries, std::string_view name) {
  return std::lower_bound(entries.begin(), entries.end(), name,
                          [](const auto& entry, std::string_view other) { return entry.first < other; });
}
}  // namespace

FunctionConstants::FunctionConstants(std::initializer_list<Entry> entries) {
  for (const auto& [name, value] : entries) (*this)[name] = value;
}

int64_t& FunctionConstants::operator[](std::string_view name) {
  auto place = place_of(entries_, name);
  if (place == entries_.end() || place->first != name) place = entries_.emplace(place, name, 0);
  return place->second;
}

int64_t FunctionConstants::at(std::string_view name) const {
  const auto place = place_of(entries_, name);
  if (place == entries_.end() || place->first != name) throw std::out_of_range("no constant " + std::string(name));
  return place->second;
}

bool FunctionConstants::contains(std::string_view name) const {
  const auto place = place_of(entries_, name);
  return place != entries_.end() && place->first == name;
}

void FunctionConstants::erase(std::string_view name) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == name; });
}

void FunctionConstants::merge(const FunctionConstants& others) {
  for (const auto& [name, value] : others) {
    if (!contains(name)) (*this)[name] = value;
  }
}

FunctionConstants KernelSource::run_time_values() const {
  FunctionConstants values;
  for (const std::string& name : run_time) {
    if (!constants.contains(name)) throw BadInput(fmt::format("{} is no constant of {}", name, path));
    const int64_t value = constants.at(name);
    if (value != static_cast<int>(value)) {
      throw BadInput(fmt::format("{}={} does not fit int; a constant that is set at run time must fit", name, value));
    }
    values[name] = value;
  }
  return values;
}

std::string KernelSource::key() const {
  std::string text = entry;
  text += '[';
  for (const auto& [name, value] : constants) {
    text += fmt::format("{}={},", name, run_time.contains(name) ? at_run_time : std::to_string(value));
  }
  for (const auto& [name, body] : includes) {
    text += fmt::format("{}:{},", fs::path(name).filename().string(), short_hash(body));
  }
  if (!assembler.empty()) text += fmt::format("{}={},", assembler_key, assembler);
  if (text.back() == ',') text.pop_back();
  text += "]";
  for (const KernelSource& fragment : fragments) {
    text += linking == Linking::before_optimizer ? '+' : '|';
    text += fragment.key();
  }
  return text;
}

namespace {

/// Puts the header of `hooks` that a key names NAME:HASH into the source's includes. Returns whether there is one.
bool add_hook(KernelSource& source, std::string_view name, std::string_view hash,
              const std::vector<SourceFile>& hooks) {
  const auto hook = std::ranges::find_if(hooks, [&](const SourceFile& file) {
    return fs::path(file.path).filename() == name && short_hash(file.text) == hash;
  });
  if (hook != hooks.end()) source.includes[hook->path] = hook->text;
  return hook != hooks.end();
}

/// Parses a key without fragments, "flash_forward[BLOCK_C=128,...]". Returns nullopt if the text is no such key, or if
/// `hooks` lacks the text of a replaced header.
std::optional<KernelSource> parse_source(std::string_view text, const std::vector<SourceFile>& hooks) {
  const size_t open = text.find('[');
  if (open == text.npos || text.back() != ']') return std::nullopt;
  KernelSource source{.path = "", .entry = std::string(text.substr(0, open))};
  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const size_t end_of_name = item.find_first_of("=:");
    if (end_of_name == item.npos) return std::nullopt;
    const std::string name(item.substr(0, end_of_name));
    const std::string_view stated = item.substr(end_of_name + 1);
    if (item[end_of_name] == ':') {
      if (!add_hook(source, name, stated, hooks)) return std::nullopt;
    } else if (name == assembler_key) {
      source.assembler = stated;
    } else if (stated == at_run_time) {
      source.constants[name] = 0;
      source.run_time.insert(name);
    } else {
      int64_t value = 0;
      const auto [end, error] = std::from_chars(stated.data(), stated.data() + stated.size(), value);
      if (error != std::errc() || end != stated.data() + stated.size()) return std::nullopt;
      source.constants[name] = value;
    }
  }
  return source;
}

}  // namespace

std::optional<KernelSource> parse_key(std::string_view key, const std::vector<SourceFile>& hooks) {
  std::optional<KernelSource> source;
  while (!key.empty()) {
    const size_t end = std::min(key.find(']'), key.size() - 1) + 1;
    const bool fragment = source && (key[0] == '+' || key[0] == '|');
    if (source && !fragment) return std::nullopt;
    if (fragment) {
      source->linking = key[0] == '+' ? Linking::before_optimizer : Linking::after_code_generation;
    }
    const std::optional<KernelSource> part = parse_source(key.substr(fragment, end - fragment), hooks);
    if (!part) return std::nullopt;
    if (fragment) {
      source->fragments.push_back(*part);
    } else {
      source = part;
    }
    key.remove_prefix(end);
  }
  return source;
}

std::string users_text_line(const KernelSource& source) {
  return source.includes.contains(users_text) ? fmt::format("#include \"{}\"\n", users_text) : std::string();
}

std::string cxx_prologue(const KernelSource& source, const std::function<std::string(const std::string&)>& declare) {
  std::string text = users_text_line(source);
  for (const auto& [name, value] : source.constants) {
    if (source.run_time.contains(name)) {
      text += declare(name);
      continue;
    }
    const bool is_int = value == static_cast<int>(value);
    // INT64_MIN cannot be written as a literal: C++ reads it as the negative of a literal that is too large.
    const std::string number = value == INT64_MIN ? fmt::format("{} - 1", INT64_MIN + 1) : fmt::to_string(value);
    text +=
        fmt::format("constexpr {0} {1} = {2};\n#define {1}_VALUE ({2})\n", is_int ? "int" : "long long", name, number);
  }
  return text + fmt::format("#line 1 \"{}\"\n", source.path);
}

size_t KernelSourceHash::operator()(const KernelSource& source) const {
  size_t hash = source.path.size();
  const auto mix = [&hash](size_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u; };  // 2^64 / golden ratio
  mix(std::hash<std::string>()(source.entry));
  for (const auto& [name, value] : source.constants) mix(static_cast<size_t>(value));
  for (const auto& [name, body] : source.includes) mix(body.size());
  mix(source.run_time.size());
  for (const KernelSource& fragment : source.fragments) mix((*this)(fragment) + static_cast<size_t>(source.linking));
  return hash ^ hash >> 32;
}

namespace {

/// Returns the folder of the sources that were installed with the libattn that has this code; an empty text if this
/// code is in the libattn of a build folder, or in a program.
std::string installed_sources() {
  Dl_info here{};
  if (!dladdr(reinterpret_cast<const void*>(&source_root), &here)) return {};
  std::error_code error;
  const fs::path library = fs::canonical(here.dli_fname, error);
  if (!library.filename().string().starts_with("libattn.")) return {};
  const fs::path sources = fs::canonical(library.parent_path() / ATTN_INSTALLED_SOURCES, error);
  return error ? std::string() : sources.string();
}

}  // namespace

std::string source_root() {
  const char* named = std::getenv("ATTENTION_PROTO_SOURCE");
  if (named && *named) return fs::absolute(named).lexically_normal().string();
  static const std::string installed = installed_sources();
  return installed.empty() ? ATTN_SOURCE_ROOT : installed;
}

void require_sources() {
  const std::string root = source_root();
  std::error_code error;
  if (fs::is_directory(fs::path(root) / "common/kernel", error)) return;
  throw BadInput(root + " is no source tree: it has no common/kernel; set ATTENTION_PROTO_SOURCE to a source tree");
}

bool is_program(std::string_view path) { return path.ends_with(".py"); }

bool is_machine_code(std::string_view path) { return path.ends_with(".cubin"); }

std::vector<std::string> kernel_files() {
  std::vector<std::string> paths;
  const fs::path root = source_root();
  std::error_code error;
  for (auto file = fs::recursive_directory_iterator(root, error); file != fs::end(file); file.increment(error)) {
    const fs::path path = fs::relative(file->path(), root, error);
    const std::string name = path.filename();
    if (file->is_directory() && (name.starts_with('.') || name == "build")) file.disable_recursion_pending();
    const bool text = name.ends_with(".cpp") || name.ends_with(".cu") || name.ends_with(".metal") ||
                      name.ends_with(".h") || is_program(name);
    if (!(path.parent_path().filename() == "kernels" && text) && !is_machine_code(name)) continue;
    paths.push_back(path.generic_string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string read_source(const KernelSource& source, const std::string& path) {
  if (const auto replaced = source.includes.find(path); replaced != source.includes.end()) return replaced->second;
  const fs::path file = fs::path(source_root()) / path;
  std::optional<std::string> text = read_file(file);
  if (!text) {
    throw BadInput(
        fmt::format("kernel source {} cannot be read; set ATTENTION_PROTO_SOURCE to the source tree", file.string()));
  }
  return std::move(*text);
}

namespace {

/// Returns NAME if the line is #include "NAME", else an empty text. A line that the preprocessor would skip counts too:
/// a superfluous file in the identity costs a recompilation, but a missing file may let outdated machine code run.
std::string_view included_name(std::string_view line) {
  size_t at = line.find_first_not_of(" \t");
  if (at == line.npos || line[at] != '#') return {};
  at = line.find_first_not_of(" \t", at + 1);
  if (at == line.npos || line.compare(at, 7, "include") != 0) return {};
  const size_t open = line.find('"', at);
  const size_t close = open == line.npos ? open : line.find('"', open + 1);
  return close == line.npos ? std::string_view() : line.substr(open + 1, close - open - 1);
}

template <typename Action>
void for_each_line(std::string_view text, const Action& action) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    action(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string without_comments(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  char quote = 0;  // the quote with which the current literal began
  const auto may_begin = [](char c) { return c == '/' || c == '"' || c == '\''; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (!quote) {
      const size_t next = std::find_if(text.begin() + i, text.end(), may_begin) - text.begin();
      kept.append(text, i, next - i);
      i = next;
      if (i == text.size()) break;
    }
    const std::string_view rest = text.substr(i);
    if (quote) {
      if (text[i] == '\\' && i + 1 < text.size()) kept += text[i++];
      if (text[i] == quote || text[i] == '\n') quote = 0;
    } else if (rest.starts_with("//")) {
      i = std::min(text.find('\n', i), text.size()) - 1;
      continue;
    } else if (rest.starts_with("/*")) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
      kept += ' ';
      continue;
    } else if (text[i] == '"' ||
               (text[i] == '\'' && (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1]))))) {
      quote = text[i];  // an apostrophe after a letter or digit would separate digits, as in 0xff'ff
    }
    kept += text[i];
  }
  return kept;
}

void collect(const KernelSource& source, const std::string& path, std::set<std::string>& seen,
             std::vector<SourceFile>& files) {
  if (!seen.insert(path).second) return;
  files.push_back({path, read_source(source, path)});
  for_each_line(without_comments(files.back().text), [&](std::string_view line) {
    if (const std::string_view name = included_name(line); !name.empty()) {
      collect(source, std::string(name), seen, files);
    }
  });
}

constexpr std::string_view words_of_metal = "common/kernel/spaces.h";

/// Returns the line with each word of spaces.h replaced by the word's meaning in the dialects other than Metal.
std::string without_words(std::string line) {
  const auto of_name = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  for (const auto& [word, meaning] :
       {std::pair{std::string_view("GLOBAL "), ""}, {"LOCAL ", ""}, {"CONSTANT ", ""}, {"INT64", "long long"}}) {
    for (size_t at = 0; (at = line.find(word, at)) != line.npos;) {
      const size_t end = at + word.size();
      const bool whole =
          (at == 0 || !of_name(line[at - 1])) && (word.ends_with(' ') || end == line.size() || !of_name(line[end]));
      if (whole) {
        line.replace(at, word.size(), meaning);
      } else {
        at = end;
      }
    }
  }
  return line;
}

/// Returns the text for the dialects other than Metal: without Metal's lines and the words of spaces.h.
std::string without_metal(std::string_view text) {
  enum class Block { other, metal, after_else };
  std::vector<Block> open;  // the blocks of #if in which a line stands
  std::string kept;
  for_each_line(text, [&](std::string_view line) {
    const std::string_view directive = line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
    if (directive.starts_with("#ifdef __METAL_VERSION__")) {
      open.push_back(Block::metal);
      return;
    }
    if (directive.starts_with("#else") && !open.empty() && open.back() == Block::metal) {
      open.back() = Block::after_else;
      return;
    }
    if (directive.starts_with("#endif") && !open.empty()) {
      const Block closed = open.back();
      open.pop_back();
      if (closed != Block::other) return;
    }
    if (std::ranges::find(open, Block::metal) == open.end()) kept.append(without_words(std::string(line))).append("\n");
    if (directive.starts_with("#if")) open.push_back(Block::other);
  });
  return kept;
}

/// Returns the text with each line that ends with a backslash joined to the next line, as the compiler does first.
std::string spliced(std::string text) {
  for (const std::string_view end : {"\\\n", "\\\r\n"}) {
    for (size_t at = 0; (at = text.find(end, at)) != text.npos;) text.erase(at, end.size());
  }
  return text;
}

void expand(const KernelSource& source, const std::string& path, bool splice, std::set<std::string>& seen,
            std::string& expanded) {
  if (!seen.insert(path).second) return;
  const bool metal = source.path.ends_with(".metal");
  if (path == words_of_metal && !metal) return;
  std::string text = read_source(source, path);
  text = without_comments(splice ? spliced(std::move(text)) : text);
  if (!metal) text = without_metal(text);
  for_each_line(text, [&](std::string_view line) {
    if (const std::string_view name = included_name(line); !name.empty()) {
      expand(source, std::string(name), splice, seen, expanded);
      return;
    }
    const size_t end = line.find_last_not_of(" \t\r") + 1;
    if (end == 0 || line.substr(0, end) == "#pragma once") return;
    expanded.append(line, 0, end).append("\n");
  });
}

/// Joins a file and the files that it includes to one text.
class Joiner {
 public:
  explicit Joiner(const KernelSource& source) : source_(source) {}

  void add(const std::string& path) {
    const std::string text = read_source(source_, path);
    const bool once = text.find("#pragma once") != text.npos;
    if (std::ranges::find(open_, path) != open_.end() || (once && whole_.contains(path))) return;
    open_.push_back(path);
    // A header that stands under an #if may be skipped there, so the next #include needs its text again.
    if (once && depth_ == 0) whole_.insert(path);
    const size_t number = numbers_.emplace(path, numbers_.size()).first->second;
    if (once) joined += fmt::format("#ifndef ATTN_FILE_{0}\n#define ATTN_FILE_{0}\n", number);
    joined += fmt::format("#line 1 \"{}\"\n", path);
    int line_number = 0;
    for_each_line(text, [&](std::string_view line) {
      ++line_number;
      if (const std::string_view name = included_name(line); !name.empty()) {
        add(std::string(name));
        joined += fmt::format("#line {} \"{}\"\n", line_number + 1, path);
        return;
      }
      const std::string_view directive = line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
      depth_ += directive.starts_with("#if") - directive.starts_with("#endif");
      if (!directive.starts_with("#pragma once")) joined += line;
      joined += '\n';
    });
    if (once) joined += "#endif\n";
    open_.pop_back();
  }

  std::string joined;

 private:
  const KernelSource& source_;
  std::vector<std::string> open_;  // the files in which the present line stands
  int depth_ = 0;                  // blocks of #if in which the present line stands
  std::set<std::string> whole_;
  std::map<std::string, size_t> numbers_;
};

/// Whether a file is not C++, and so includes no other file.
bool is_whole(const std::string& path) { return is_program(path) || is_machine_code(path); }

}  // namespace

std::string joined_text(const KernelSource& source, const std::string& between) {
  Joiner joiner(source);
  if (source.includes.contains(users_text)) joiner.add(users_text);
  joiner.joined += between;
  joiner.add(source.path);
  return std::move(joiner.joined);
}

std::vector<SourceFile> hooks_of(const KernelSource& source) {
  std::vector<SourceFile> hooks;
  for (const auto& [path, text] : source.includes) hooks.push_back({path, text});
  for (const KernelSource& fragment : source.fragments) {
    for (SourceFile& hook : hooks_of(fragment)) hooks.push_back(std::move(hook));
  }
  return hooks;
}

std::vector<SourceFile> reached_sources(const KernelSource& source) {
  if (is_whole(source.path)) return {{source.path, read_source(source, source.path)}};
  std::vector<SourceFile> files;
  std::set<std::string> seen;
  collect(source, source.path, seen, files);
  if (source.includes.contains(users_text)) collect(source, users_text, seen, files);
  return files;
}

std::string expanded_text(const KernelSource& source, bool splice) {
  if (is_whole(source.path)) return read_source(source, source.path);
  std::string text;
  std::set<std::string> seen;
  if (source.includes.contains(users_text)) expand(source, users_text, splice, seen, text);
  expand(source, source.path, splice, seen, text);
  return text;
}

std::string identifying_text(const KernelSource& source) {
  return is_whole(source.path) ? read_source(source, source.path) : tokens_of(expanded_text(source, true));
}

std::string source_sha256(const KernelSource& source, const IdentifyingText& text_of) {
  std::string text = source.entry + "\n";
  for (const auto& [name, value] : source.constants) {
    text += fmt::format("{}={}\n", name, source.run_time.contains(name) ? at_run_time : std::to_string(value));
  }
  if (!source.assembler.empty()) text += fmt::format("assembler {}\n", source.assembler);
  text += text_of(source);
  for (const KernelSource& fragment : source.fragments) {
    text += fmt::format("linked {} {}\n", static_cast<int>(source.linking), source_sha256(fragment, text_of));
  }
  return sha256(text);
}

}  // namespace attn
