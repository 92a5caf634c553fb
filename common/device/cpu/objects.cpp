#include "common/device/cpu/objects.h"

#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
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
#include <memory>

#include "common/base/error.h"

namespace attn {

std::string pack(const std::vector<std::string>& objects) {
  if (objects.size() == 1) return objects.front();
  std::vector<llvm::NewArchiveMember> members;
  // The member keeps a reference to its name.
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

CodeContents cpu_contents(const std::string& code, const llvm::TargetMachine& machine) {
  const llvm::MCInstrInfo& names = *machine.getMCInstrInfo();
  const llvm::Triple& triple = machine.getTargetTriple();
  llvm::MCContext context(triple, machine.getMCAsmInfo(), machine.getMCRegisterInfo(), machine.getMCSubtargetInfo());
  const std::unique_ptr<llvm::MCDisassembler> disassembler(
      machine.getTarget().createMCDisassembler(*machine.getMCSubtargetInfo(), context));
  const std::unique_ptr<llvm::MCInstPrinter> printer(
      machine.getTarget().createMCInstPrinter(triple, machine.getMCAsmInfo()->getAssemblerDialect(),
                                              *machine.getMCAsmInfo(), names, *machine.getMCRegisterInfo()));
  CodeContents found;
  if (!disassembler || !printer) return found;
  found.bytes = 0;
  for (const std::string& object : unpack(code)) {
    auto file = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(object, "object"));
    if (!file) throw CompileError("no object file: " + llvm::toString(file.takeError()));
    for (const llvm::object::SectionRef& section : (*file)->sections()) {
      if (!section.isText()) continue;
      auto text = section.getContents();
      if (!text) throw CompileError("no object file: " + llvm::toString(text.takeError()));
      const llvm::ArrayRef<uint8_t> bytes(reinterpret_cast<const uint8_t*>(text->data()), text->size());
      found.bytes += static_cast<int64_t>(bytes.size());
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
        // Behind a tabulator comes what belongs to the operands: "callq\t*".
        if (name) ++found.instructions[llvm::StringRef(name).split('\t').first.str()];
      }
    }
  }
  return found;
}

}  // namespace attn
