// Tests of the pipeline cache and of the archive. Most tests use a FakeDevice, whose code is so small that a test can
// change every byte of an entry in turn.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sha256.h"
#include "common/device/pipeline_cache.h"
#include "common/device/tests/support.h"
#include "common/testing/forks.h"
#include "common/testing/plain_devices.h"

namespace attn {
namespace {

namespace fs = std::filesystem;
using test::CapturedLog;
using test::kernel_text;
using test::TemporaryFolder;
using test::Variable;
using test::write_text;

struct FakeKernel : Kernel {
  explicit FakeKernel(std::string loaded) : code(std::move(loaded)) {}
  std::string code;
};

/// Counts its compilations, makes the code from the source's key, and runs no kernel.
class FakeDevice : public test::HostMemoryDevice {
 public:
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    {
      const std::lock_guard lock(mutex_);
      last_options = options;
      ++compiled_[source.key()];
    }
    std::this_thread::sleep_for(compile_time);
    if (fail) throw CompileError("the test lets each compilation fail");
    return expected(source);
  }
  std::string compiler_identity() const override { return identity; }
  std::unique_ptr<Kernel> load(const Binary& binary, const std::string&) override {
    return std::make_unique<FakeKernel>(binary.code);
  }

  static Binary expected(const KernelSource& source) {
    Binary binary;
    binary.key = source.key();
    binary.source_sha256 = source_sha256(source);
    binary.code = std::string("\n\0\xFF code {}\n of ", 16) + source.key();
    binary.code_sha256 = sha256(binary.code);
    binary.times = {0.1, 1.0 / 3, 1.5e-5};
    binary.registers = 17;
    binary.spill_bytes = int64_t{1} << 40;
    return binary;
  }
  int compiled() const {
    int sum = 0;
    for (const auto& [key, count] : compiled_) sum += count;
    return sum;
  }

  std::string identity = "compiler 1";
  std::chrono::milliseconds compile_time{0};
  bool fail = false;
  CompileOptions last_options;

 private:
  std::mutex mutex_;
  std::map<std::string, int> compiled_;
};

/// Every other bit is the one that changes the case of letters, also of hex digits and exponents.
char changed_bit(size_t at) { return static_cast<char>(at % 2 == 0 ? 0x20 : 1 << at / 2 % 8); }

KernelSource source_number(int64_t number) { return kernel_text("// nothing\n", {{"NUMBER", number}}); }

class PipelineCacheTest : public testing::Test {
 protected:
  /// Returns the origin of the source's pipeline in a new cache over the folder, as in a new process. Checks the binary
  /// too.
  std::string origin_in_a_new_run(const KernelSource& source, const std::string& folder) {
    PipelineCache cache(device_, folder);
    const Pipeline& pipeline = cache.get(source);
    EXPECT_EQ(pipeline.binary, FakeDevice::expected(source));
    EXPECT_EQ(static_cast<const FakeKernel&>(*pipeline.kernel).code, pipeline.binary.code);
    return pipeline.origin;
  }
  std::string origin_in_a_new_run(const KernelSource& source) { return origin_in_a_new_run(source, folder_.path()); }

  FakeDevice device_;
  TemporaryFolder folder_;
};

TEST_F(PipelineCacheTest, CompilesWithItsOptions) {
  PipelineCache(device_, folder_.path()).get(source_number(1));
  EXPECT_FALSE(device_.last_options.precompile_headers);
  PipelineCache traced(device_, folder_.path(), {.precompile_headers = true, .trace_phases = true});
  EXPECT_EQ(traced.get(source_number(1)).origin, "disk") << "a cache with other options must find the entry";
  EXPECT_EQ(traced.get(source_number(2)).origin, "compiled");
  EXPECT_TRUE(device_.last_options.precompile_headers);
  EXPECT_TRUE(device_.last_options.trace_phases);
}

TEST_F(PipelineCacheTest, GivesTheSamePipelineAgain) {
  PipelineCache cache(device_, "");
  const Pipeline& first = cache.get(source_number(1));
  EXPECT_EQ(first.origin, "compiled");
  EXPECT_GT(first.ready_s, 0);
  for (int i = 2; i < 200; ++i) cache.get(source_number(i));
  EXPECT_EQ(&cache.get(source_number(1)), &first)
      << "the first pipeline must keep its address while other pipelines are added";
  EXPECT_EQ(device_.compiled(), 199);
}

TEST_F(PipelineCacheTest, TellsSourcesApart) {
  const KernelSource source = source_number(1);
  std::vector<KernelSource> sources(8, source);
  sources[1].entry = "walk";
  sources[2].constants["NUMBER"] = 2;
  sources[3].includes[source.path] += "extern int more;\n";
  sources[4].assembler = "-O1";
  for (size_t i = 5; i < 8; ++i) sources[i].fragments = {source_number(2)};
  sources[6].fragments[0].constants["NUMBER"] = 3;
  sources[7].linking = Linking::after_code_generation;
  PipelineCache cache(device_, folder_.path());
  for (const KernelSource& each : sources) EXPECT_EQ(cache.get(each).origin, "compiled") << each.key();
  for (const KernelSource& each : sources) EXPECT_EQ(origin_in_a_new_run(each), "disk") << each.key();
  EXPECT_EQ(device_.compiled(), static_cast<int>(sources.size()));
  EXPECT_EQ(folder_.files().size(), sources.size());
  device_.identity = "compiler 2";
  EXPECT_EQ(origin_in_a_new_run(source), "compiled") << "the cache must not use the code of another compiler";
}

TEST_F(PipelineCacheTest, AMovedSourceHasTheSameCode) {
  KernelSource source = source_number(1), moved = source;
  moved.path = "other.cpu.cpp";
  moved.includes = {{moved.path, "// More to say.\n" + source.includes.at(source.path)}};
  PipelineCache cache(device_, folder_.path());
  EXPECT_EQ(cache.get(source).origin, "compiled");
  const Pipeline& found = cache.get(moved);
  EXPECT_EQ(found.origin, "disk");
  EXPECT_NE(moved.key(), source.key());
  EXPECT_EQ(found.binary.key, moved.key());
}

// The cache must compile the kernel again and repair the entry on disk.
TEST_F(PipelineCacheTest, TrustsNoDamagedEntry) {
  const KernelSource source = source_number(1);
  origin_in_a_new_run(source);
  const auto files = folder_.files();
  ASSERT_EQ(files.size(), 1u);
  const auto& [name, entry] = *files.begin();
  std::vector<std::string> damaged = {entry + "x", entry + entry, "\n" + entry, std::string(5000, '\0')};
  for (size_t length = 0; length < entry.size(); ++length) damaged.push_back(entry.substr(0, length));
  for (size_t at = 0; at < entry.size(); ++at) {
    damaged.push_back(entry);
    damaged.back()[at] ^= changed_bit(at);
  }
  for (const std::string& text : damaged) {
    CapturedLog log;
    write_text(folder_.path() / name, text);
    ASSERT_EQ(origin_in_a_new_run(source), "compiled") << text;
    ASSERT_EQ(log.lines(), 1) << log.text();
    ASSERT_EQ(folder_.files(), files) << "the folder must have the repaired entry and no other file";
  }
  EXPECT_EQ(origin_in_a_new_run(source), "disk");
}

TEST_F(PipelineCacheTest, TrustsNoEntryUnderTheNameOfAnotherEntry) {
  origin_in_a_new_run(source_number(1));
  const std::string first = folder_.files().begin()->first;
  origin_in_a_new_run(source_number(2));
  auto files = folder_.files();
  ASSERT_EQ(files.size(), 2u);
  for (const auto& [name, entry] : files) {
    if (name != first) write_text(folder_.path() / first, entry);
  }
  CapturedLog log;
  EXPECT_EQ(origin_in_a_new_run(source_number(1)), "compiled");
  EXPECT_EQ(folder_.files(), files);
}

TEST_F(PipelineCacheTest, WorksIfTheFolderCannotBeMadeOrWritten) {
  const fs::path file = folder_.path() / "file";
  write_text(file, "in the way");
  for (const std::string& folder :
       {file.string(), (file / "sub").string(), std::string("/proc/attention-proto"), std::string("/proc")}) {
    CapturedLog log;
    PipelineCache cache(device_, folder);
    EXPECT_EQ(cache.get(source_number(1)).origin, "compiled") << folder;
    EXPECT_EQ(cache.get(source_number(2)).origin, "compiled");
    EXPECT_EQ(&cache.get(source_number(1)), &cache.get(source_number(1)));
    EXPECT_EQ(log.lines(), 1) << log.text();
    EXPECT_NE(log.text().find(folder), std::string::npos) << log.text();
  }
}

/// Limits the length of files that this process may write, to imitate a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit old_;
};

TEST_F(PipelineCacheTest, LeavesNoPartOfAFileOnAFullDisk) {
  for (const rlim_t bytes : {0, 1, 100}) {
    CapturedLog log;
    PipelineCache cache(device_, folder_.path());
    std::string origin;
    {
      const FileSizeLimit limit(bytes);
      origin = cache.get(source_number(1)).origin;
      cache.get(source_number(2));
    }
    EXPECT_EQ(origin, "compiled");
    EXPECT_TRUE(folder_.files().empty()) << folder_.files().begin()->first;
    EXPECT_EQ(log.lines(), 1) << log.text();
  }
  EXPECT_EQ(origin_in_a_new_run(source_number(1)), "compiled");
  EXPECT_EQ(origin_in_a_new_run(source_number(1)), "disk") << "the cache must write again when the disk has room";
}

TEST_F(PipelineCacheTest, AWaitingThreadCompilesAfterAFailedCompilation) {
  device_.compile_time = std::chrono::milliseconds(50);
  device_.fail = true;
  PipelineCache one(device_, folder_.path()), other(device_, folder_.path());
  std::thread thread([&] { EXPECT_THROW(other.get(source_number(1)), CompileError); });
  EXPECT_THROW(one.get(source_number(1)), CompileError);
  thread.join();
  EXPECT_EQ(device_.compiled(), 2);
  EXPECT_TRUE(folder_.files().empty());
  device_.fail = false;
  EXPECT_EQ(one.get(source_number(1)).origin, "compiled") << "the cache must keep no failure";
}

// A process that died during a compilation leaves a file ENTRY.part, on which no process has a lock.
TEST_F(PipelineCacheTest, TakesOverTheFileOfADeadProcess) {
  origin_in_a_new_run(source_number(1));
  const auto files = folder_.files();
  const std::string name = files.begin()->first;
  fs::remove(folder_.path() / name);
  write_text(folder_.path() / (name + ".part"),
             "half of an entry, and longer than the entry that is to come: " + std::string(4096, 'x'));
  EXPECT_EQ(origin_in_a_new_run(source_number(1)), "compiled");
  EXPECT_EQ(folder_.files(), files);
}

TEST_F(PipelineCacheTest, PrepareGetsAllPipelinesAndThrowsAThreadsError) {
  std::vector<KernelSource> sources;
  for (int i = 0; i < 20; ++i) sources.push_back(source_number(i % 15));
  PipelineCache cache(device_, "");
  cache.prepare({}, 3);
  cache.prepare(sources, 3);
  EXPECT_EQ(cache.archive().size(), 15u);
  EXPECT_EQ(device_.compiled(), 15);
  device_.fail = true;
  sources.push_back(source_number(99));
  EXPECT_THROW(cache.prepare(sources, 3), CompileError);
}

TEST_F(PipelineCacheTest, SourcesThatDifferInRunTimeValuesShareABinary) {
  KernelSource source = source_number(1);
  source.run_time = {"NUMBER"};
  KernelSource same = source;
  same.constants["NUMBER"] = 2;
  EXPECT_EQ(source.key(), same.key());
  EXPECT_EQ(source_sha256(source), source_sha256(same));
  EXPECT_NE(source_sha256(source), source_sha256(source_number(1)));
  PipelineCache cache(device_, folder_.path());
  EXPECT_EQ(cache.get(source).origin, "compiled");
  EXPECT_EQ(cache.get(same).origin, "disk");
  EXPECT_NE(&cache.get(source), &cache.get(same)) << "each source's pipeline must have the source's values";
  EXPECT_EQ(cache.get(source).binary.run_time, (FunctionConstants{{"NUMBER", 1}}));
  EXPECT_EQ(cache.get(same).binary.run_time, (FunctionConstants{{"NUMBER", 2}}));

  source.run_time = {"ANOTHER"};
  EXPECT_THROW(cache.get(source), BadInput);
  same.constants["NUMBER"] = int64_t{1} << 40;
  test::expect_error<BadInput>([&] { cache.get(same); }, {"NUMBER=1099511627776"});
}

TEST_F(PipelineCacheTest, DefaultFolderFollowsTheEnvironment) {
  const Variable named("ATTENTION_PROTO_CACHE", "/named"), xdg("XDG_CACHE_HOME", "/xdg"), home("HOME", "/home/me");
  EXPECT_EQ(PipelineCache::default_folder(), "/named");
  {
    const Variable off("ATTENTION_PROTO_CACHE", "");
    EXPECT_EQ(PipelineCache::default_folder(), "") << "an empty variable must switch the disk cache off";
  }
  const Variable unnamed("ATTENTION_PROTO_CACHE", std::nullopt);
  EXPECT_EQ(PipelineCache::default_folder(), "/xdg/attention-proto");
  const Variable no_xdg("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(PipelineCache::default_folder(), "/home/me/.cache/attention-proto");
  const Variable no_home("HOME", std::nullopt);
  EXPECT_EQ(PipelineCache::default_folder(), "");
}

class PipelineArchiveTest : public PipelineCacheTest {
 protected:
  static constexpr int entries = 3;
  static std::string key(int number) { return sha256(std::to_string(number)); }

  std::string path_ = folder_.path() / "archive";

  /// Saves an archive and returns the file's text.
  std::string saved() {
    PipelineArchive archive;
    for (int i = 0; i < entries; ++i) archive.add(key(i), FakeDevice::expected(source_number(i)));
    archive.save(path_);
    return test::read_text(path_);
  }
  /// Loads `text` as an archive. Each entry must be right or absent. Returns nothing if `text` is no archive.
  std::optional<PipelineArchive> load(const std::string& text) {
    write_text(path_, text);
    const CapturedLog log;
    std::optional<PipelineArchive> archive;
    try {
      archive = PipelineArchive::load(path_);
    } catch (const BadInput&) {
      return std::nullopt;
    }
    size_t found = 0;
    for (int i = 0; i < entries; ++i) {
      if (const Binary* binary = archive->find(key(i))) {
        ++found;
        EXPECT_EQ(*binary, FakeDevice::expected(source_number(i)));
      }
    }
    EXPECT_EQ(archive->size(), found);
    EXPECT_EQ(log.lines(), archive->damaged() > 0) << log.text();
    return archive;
  }
};

TEST_F(PipelineArchiveTest, IsAskedBeforeTheDiskAndTheCompiler) {
  PipelineCache first(device_, folder_.path() / "cache");
  first.get(source_number(0));
  first.get(source_number(1));
  first.archive().save(path_);
  PipelineCache second(device_, folder_.path() / "cache");
  second.attach(PipelineArchive::load(path_));
  const Pipeline& pipeline = second.get(source_number(1));
  EXPECT_EQ(pipeline.origin, "archive");
  EXPECT_EQ(pipeline.binary, FakeDevice::expected(source_number(1)));
  EXPECT_EQ(second.get(source_number(2)).origin, "compiled");
  EXPECT_EQ(second.archive().size(), 2u);
  EXPECT_EQ(device_.compiled(), 3);
}

TEST_F(PipelineArchiveTest, AFileThatIsCutAnywhereKeepsItsWholeEntries) {
  const std::string text = saved();
  const size_t magic_bytes = text.find('\n') + 1;
  size_t most = 0;
  for (size_t length = 0; length < text.size(); ++length) {
    const auto archive = load(text.substr(0, length));
    ASSERT_EQ(archive.has_value(), length >= magic_bytes) << length;
    if (!archive) continue;
    EXPECT_LT(archive->size(), size_t{entries});
    EXPECT_GE(archive->size(), most) << "a longer part of the file must not have fewer entries";
    EXPECT_LE(archive->damaged(), 1u);
    most = archive->size();
  }
  EXPECT_EQ(most, size_t{entries} - 1);
}

TEST_F(PipelineArchiveTest, AFlippedBitAnywhereIsNoticed) {
  const std::string text = saved();
  const size_t magic_bytes = text.find('\n') + 1;
  for (size_t at = 0; at < text.size(); ++at) {
    std::string flipped = text;
    flipped[at] ^= changed_bit(at);
    const auto archive = load(flipped);
    ASSERT_EQ(archive.has_value(), at >= magic_bytes) << at;
    if (archive) {
      EXPECT_GE(archive->damaged(), 1u) << at;
    }
  }
}

TEST_F(PipelineArchiveTest, DamagedEntriesAreReportedAndCompiledAgain) {
  PipelineCache first(device_, "");
  for (int i = 0; i < entries; ++i) first.get(source_number(i));
  first.archive().save(path_);
  std::string text = test::read_text(path_);
  text[text.find("code {}")] = 'C';
  write_text(path_, text);

  CapturedLog log;
  PipelineCache second(device_, "");
  second.attach(PipelineArchive::load(path_));
  EXPECT_EQ(log.lines(), 1) << log.text();
  test::expect_words(log.text(), {path_, "damaged entries: 1", "good entries: 2"});
  int compiled = 0;
  for (int i = 0; i < entries; ++i) {
    const Pipeline& pipeline = second.get(source_number(i));
    EXPECT_EQ(pipeline.binary, FakeDevice::expected(source_number(i)));
    compiled += pipeline.origin == "compiled";
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(device_.compiled(), entries + 1);
}

TEST_F(PipelineArchiveTest, RefusesForeignFilesAndReadsItsOwn) {
  for (const char* text : {"",
                           "\x7F"
                           "ELF",
                           "{}", "attention-proto archive 2\n"}) {
    write_text(path_, text);
    test::expect_error<BadInput>([&] { PipelineArchive::load(path_); }, {path_});
  }
  EXPECT_EQ(load(saved()).value().size(), size_t{entries});
  EXPECT_EQ(PipelineArchive::load(path_).find(key(entries)), nullptr);
  PipelineArchive().save(path_);
  EXPECT_EQ(PipelineArchive::load(path_).size(), 0u);
  EXPECT_THROW(PipelineArchive::load(folder_.path() / "missing"), BadInput);
  EXPECT_THROW(PipelineArchive::load(folder_.path()), BadInput);
  EXPECT_THROW(PipelineArchive().save(folder_.path() / "missing" / "archive"), BadInput);
}

// ---- tests with two processes

/// A FakeDevice that logs each compilation as a line in a file, which several processes may share.
class LoggingDevice : public FakeDevice {
 public:
  explicit LoggingDevice(fs::path log) : log_(std::move(log)) { compile_time = std::chrono::milliseconds(3); }
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    const std::string line = source.key() + "\n";
    const int file = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
    close(file);
    return FakeDevice::compile(source, options);
  }

 private:
  const fs::path log_;
};

TEST(SharedFolder, TwoProcessesOfEightThreadsCompileEachKeyOnce) {
  constexpr int keys = 40;  // all threads want the first 10 keys; two threads of each process want each later key
  const TemporaryFolder folder, logs;
  const fs::path log = logs.path() / "compiled";
  const auto process = [&] {
    LoggingDevice device(log);
    PipelineCache cache(device, folder.path());
    std::atomic<bool> right = true;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < keys; ++i) {
          const int key = thread % 2 ? keys - 1 - i : i;
          if (key >= 10 && key % 4 != thread / 2) continue;
          const Pipeline& pipeline = cache.get(source_number(key));
          if (pipeline.binary.code != FakeDevice::expected(source_number(key)).code) right = false;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return right.load();
  };
  const pid_t one = test::start_fork(process), other = test::start_fork(process);
  test::expect_success(one);
  test::expect_success(other);
  std::map<std::string, int> compiled;
  std::istringstream lines(test::read_text(log));
  for (std::string line; std::getline(lines, line);) ++compiled[line];
  EXPECT_EQ(compiled.size(), size_t{keys});
  for (const auto& [key, times] : compiled) EXPECT_EQ(times, 1) << key;
  EXPECT_EQ(folder.files().size(), size_t{keys}) << "the folder must have the entries and no other file";
  FakeDevice device;
  PipelineCache cache(device, folder.path());
  for (int key = 0; key < keys; ++key) EXPECT_EQ(cache.get(source_number(key)).origin, "disk") << key;
}

}  // namespace
}  // namespace attn
