#include "common/backends/cpu/objects.h"

#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
#include <llvm/MC/MCInstrAnalysis.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Object/Archive.h>
#include <llvm/Object/ArchiveWriter.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/device/instruction_class.h"

namespace attn {

std::string pack(const std::vector<std::string>& objects) {
  if (objects.size() == 1) return objects.front();
  std::vector<llvm::NewArchiveMember> members;
  // A member keeps only a reference to its name. Here the name is a literal, which always exists.
  for (const std::string& object : objects) members.emplace_back(llvm::MemoryBufferRef(object, "object.o"));
  auto archive =
      llvm::writeArchiveToBuffer(members, llvm::SymtabWritingMode::NoSymtab, llvm::object::Archive::K_GNU, true, false);
  if (!archive) throw CompileError("LLVM cannot write archives: " + llvm::toString(archive.takeError()));
  return (*archive)->getBuffer().str();
}

std::vector<std::string> unpack(const std::string& code) {
  if (!code.starts_with(llvm::object::ArchiveMagic)) return {code};
  auto archive = llvm::object::Archive::create(llvm::MemoryBufferRef(code, "archive"));
  if (!archive) throw CompileError("the archive is damaged: " + llvm::toString(archive.takeError()));
  std::vector<std::string> objects;
  llvm::Error error = llvm::Error::success();
  for (const llvm::object::Archive::Child& child : (*archive)->children(error)) {
    auto object = child.getBuffer();
    if (!object) throw CompileError("the archive is damaged: " + llvm::toString(object.takeError()));
    objects.push_back(object->str());
  }
  if (error) throw CompileError("the archive is damaged: " + llvm::toString(std::move(error)));
  return objects;
}

namespace {

constexpr const char* multiply_add = "multiply_add";

/// An instruction of a section of code.
struct Placed {
  uint64_t at;  // the address
  std::vector<std::string> classes;
  std::optional<uint64_t> target = {};  // the address to which a branch goes
};

/// Returns the counts for CodeContents::loop. A loop is the code from the target of a backward branch to this branch.
std::map<std::string, int> busiest_loop(const std::vector<Placed>& code) {
  std::map<std::string, int> busiest;
  std::optional<size_t> last_end;  // index of the previous backward branch
  for (size_t end = 0; end < code.size(); ++end) {
    const std::optional<uint64_t> target = code[end].target;
    if (!target || *target > code[end].at) continue;
    const auto begin = static_cast<size_t>(std::ranges::lower_bound(code, *target, {}, &Placed::at) - code.begin());
    const bool innermost = !last_end || *last_end < begin;
    last_end = end;
    if (!innermost) continue;
    std::map<std::string, int> loop = {{"instructions", static_cast<int>(end + 1 - begin)}};
    for (size_t i = begin; i <= end; ++i) {
      for (const std::string& one : code[i].classes) ++loop[one];
    }
    if (loop[multiply_add] > busiest[multiply_add]) busiest = std::move(loop);
  }
  return busiest;
}

}  // namespace

CodeContents cpu_contents(const std::string& code, const llvm::TargetMachine& machine) {
  const llvm::MCInstrInfo& names = *machine.getMCInstrInfo();
  const llvm::Triple& triple = machine.getTargetTriple();
  llvm::MCContext context(triple, machine.getMCAsmInfo(), machine.getMCRegisterInfo(), machine.getMCSubtargetInfo());
  const std::unique_ptr<llvm::MCDisassembler> disassembler(
      machine.getTarget().createMCDisassembler(*machine.getMCSubtargetInfo(), context));
  const std::unique_ptr<llvm::MCInstPrinter> printer(
      machine.getTarget().createMCInstPrinter(triple, machine.getMCAsmInfo()->getAssemblerDialect(),
                                              *machine.getMCAsmInfo(), names, *machine.getMCRegisterInfo()));
  const std::unique_ptr<llvm::MCInstrAnalysis> branches(machine.getTarget().createMCInstrAnalysis(&names));
  CodeContents found;
  if (!disassembler || !printer) return found;
  found.bytes = 0;
  for (const std::string& object : unpack(code)) {
    auto file = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(object, "object"));
    if (!file) throw CompileError("the code is not an object file: " + llvm::toString(file.takeError()));
    for (const llvm::object::SectionRef& section : (*file)->sections()) {
      if (!section.isText()) continue;
      auto text = section.getContents();
      if (!text) throw CompileError("the object file is damaged: " + llvm::toString(text.takeError()));
      const llvm::ArrayRef<uint8_t> bytes(reinterpret_cast<const uint8_t*>(text->data()), text->size());
      found.bytes += static_cast<int64_t>(bytes.size());
      std::vector<Placed> placed;
      for (uint64_t at = 0, size = 0; at < bytes.size(); at += std::max<uint64_t>(size, 1)) {
        llvm::MCInst instruction;
        if (disassembler->getInstruction(instruction, size, bytes.slice(at), at, llvm::nulls()) !=
            llvm::MCDisassembler::Success) {
          continue;
        }
#if LLVM_VERSION_MAJOR >= 20
        const char* const name = printer->getMnemonic(instruction).first;
#else
        const char* const name = printer->getMnemonic(&instruction).first;
#endif
        // Text after a tab belongs to the operands: "callq\t*".
        if (name) ++found.instructions[llvm::StringRef(name).split('\t').first.str()];
        if (!triple.isX86() && !triple.isAArch64()) continue;
        std::string printed;
        llvm::raw_string_ostream stream(printed);
        printer->printInst(&instruction, at, "", *machine.getMCSubtargetInfo(), stream);
        placed.push_back({at, triple.isX86() ? x86_classes(stream.str()) : aarch64_classes(stream.str())});
        for (const std::string& one : placed.back().classes) ++found.classes[one];
        uint64_t target = 0;
        if (branches->isBranch(instruction) && branches->evaluateBranch(instruction, at, size, target)) {
          placed.back().target = target;
        }
      }
      if (auto loop = busiest_loop(placed); loop[multiply_add] > found.loop[multiply_add]) found.loop = std::move(loop);
    }
  }
  if (found.loop[multiply_add] == 0) found.loop.clear();
  return found;
}

}  // namespace attn
