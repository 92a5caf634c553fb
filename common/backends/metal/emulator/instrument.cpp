#include "common/backends/metal/emulator/instrument.h"

#include <fmt/format.h>
#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/DebugInfoMetadata.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicInst.h>
#include <llvm/IR/Module.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/IPO/GlobalOpt.h>
#include <llvm/Transforms/IPO/Internalize.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/backends/metal/emulator/machine.h"
#include "common/backends/metal/emulator/memory.h"

namespace attn::msl {

namespace {

constexpr unsigned device_space = 1, constant_space = 2, threadgroup_space = 3;

// Returns the text of the C string to which an annotation refers.
std::string text_of(const llvm::Value* value) {
  const auto* const global = llvm::dyn_cast<llvm::GlobalVariable>(value->stripPointerCasts());
  const auto* const data = global && global->hasInitializer()
                               ? llvm::dyn_cast<llvm::ConstantDataSequential>(global->getInitializer())
                               : nullptr;
  return data && data->isCString() ? data->getAsCString().str() : std::string();
}
// Returns the first argument of an annotation, or 0 if the annotation has no argument.
uint64_t number_of(const llvm::Value* value) {
  const auto* const global = llvm::dyn_cast<llvm::GlobalVariable>(value->stripPointerCasts());
  if (!global || !global->hasInitializer()) return 0;
  const llvm::Constant* const first = global->getInitializer()->getAggregateElement(0u);
  const auto* const number = llvm::dyn_cast_or_null<llvm::ConstantInt>(first);
  return number ? number->getZExtValue() : 0;
}

// Returns the name that the user wrote for a variable of a function: "scores" for _ZZ4nameE6scores. The name may
// contain an E itself.
std::string plain_name(llvm::StringRef name) {
  if (!name.starts_with("_ZZ")) return name.str();
  for (size_t at = name.rfind('E'); at != llvm::StringRef::npos; at = name.rfind('E', at)) {
    llvm::StringRef rest = name.drop_front(at + 1);
    size_t bytes = 0;
    if (!rest.consumeInteger(10, bytes) && bytes <= rest.size()) return rest.take_front(bytes).str();
  }
  return name.str();
}

class Instrumenter {
 public:
  Instrumenter(llvm::Module& module, bool fast_math, const std::string& library)
      : module_(module), context_(module.getContext()), fast_math_(fast_math), library_(library) {
    facts.places.emplace_back("an unknown line");
  }

  void set_function_constants(const std::map<std::string, double>& values);
  void find_parameters();
  void inline_library();
  void list_constants();
  void check(llvm::Function& function);

  Facts facts;
  std::string error;

 private:
  void run(llvm::ModulePassManager passes);
  void place_arrays();
  uint32_t place_of(const llvm::Instruction& instruction);
  bool is_library(const llvm::DILocation& at) const;
  bool in_library(const llvm::Instruction& instruction) const;
  void touch(llvm::Instruction& before, llvm::Value* address, llvm::Value* bytes, bool writes, bool atomic,
             bool coherent, uint64_t alignment);
  void access(llvm::Instruction& instruction, llvm::Value* address, llvm::Type* type, bool writes, bool atomic,
              llvm::Align alignment);
  void arithmetic(llvm::Instruction& instruction);
  void integer_division(llvm::Instruction& instruction);
  void report_if(llvm::Instruction& instruction, llvm::IRBuilder<>& builder, llvm::Value* found, unsigned operation);
  void require_finite(llvm::Instruction& instruction, llvm::Value* value, unsigned operation, bool is_result);
  llvm::ConstantInt* number(uint64_t value, unsigned bits = 32) const {
    return llvm::ConstantInt::get(llvm::IntegerType::get(context_, bits), value);
  }

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  const bool fast_math_;
  const std::string library_;
  std::map<std::string, uint32_t> numbers_;                                  // the numbers of places
  std::vector<std::pair<llvm::WeakTrackingVH, std::string>> without_value_;  // function constants
};

// Gives each of Metal's function constants its value from `values`, whose keys are numbers or names of function
// constants. Tells LLVM that the variable never changes, so that LLVM uses the value.
void Instrumenter::set_function_constants(const std::map<std::string, double>& values) {
  std::map<std::string, double> unused = values;
  const llvm::GlobalVariable* const list = module_.getGlobalVariable("llvm.global.annotations");
  const auto* const entries = list ? llvm::dyn_cast<llvm::ConstantArray>(list->getInitializer()) : nullptr;
  for (unsigned i = 0; entries && i < entries->getNumOperands(); ++i) {
    const auto* const entry = llvm::cast<llvm::ConstantStruct>(entries->getOperand(i));
    auto* const global = llvm::dyn_cast<llvm::GlobalVariable>(entry->getOperand(0)->stripPointerCasts());
    if (!global || text_of(entry->getOperand(1)) != "function_constant") continue;
    const std::string index = std::to_string(number_of(entry->getOperand(4)));
    std::string name = global->getName().str();
    if (name.starts_with("_ZL")) name.erase(0, name.find_first_not_of("0123456789", 3));
    auto found = values.find(index);
    if (found == values.end()) found = values.find(name);
    llvm::Type* const type = global->getValueType();
    if (found != values.end()) {
      unused.erase(found->first);
      global->setInitializer(type->isIntegerTy()
                                 ? llvm::ConstantInt::getSigned(type, static_cast<int64_t>(found->second))
                                 : llvm::ConstantFP::get(type, found->second));
    } else {
      without_value_.emplace_back(global, fmt::format("{} ({})", name, index));
    }
    global->setConstant(true);
    global->setLinkage(llvm::GlobalValue::InternalLinkage);
  }
  for (const auto& [name, value] : unused) {
    if (error.empty()) error = fmt::format("the kernel has no function constant {}", name);
  }
  if (llvm::GlobalVariable* const annotations = module_.getGlobalVariable("llvm.global.annotations")) {
    annotations->eraseFromParent();
  }
}

// Reads the attributes of the kernel's parameters. The kernel has one annotation for each parameter, in the same order.
void Instrumenter::find_parameters() {
  const llvm::GlobalVariable* const count = module_.getGlobalVariable("msl_parameters");
  const auto* const wanted = count ? llvm::dyn_cast<llvm::ConstantInt>(count->getInitializer()) : nullptr;
  std::vector<llvm::CallInst*> annotations;
  for (llvm::Function& function : module_) {
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      auto* const call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (call && call->getCalledFunction() &&
          call->getCalledFunction()->getIntrinsicID() == llvm::Intrinsic::var_annotation) {
        annotations.push_back(call);
      }
    }
  }
  // The variable msl_kernel points to the kernel. Other kernels of the file have annotations too, which do not count.
  const llvm::Function* kernel = nullptr;
  if (const llvm::GlobalVariable* const chosen = module_.getGlobalVariable("msl_kernel")) {
    kernel = llvm::dyn_cast<llvm::Function>(chosen->getInitializer()->stripPointerCasts());
  }
  for (llvm::CallInst* const call : annotations) {
    if (call->getFunction() == kernel) {
      facts.parameters.push_back(
          {text_of(call->getArgOperand(1)), static_cast<uint32_t>(number_of(call->getArgOperand(4)))});
    }
  }
  for (llvm::CallInst* const call : annotations) call->eraseFromParent();
  // Metal gives a parameter without a location the first free one (specification, section 5.2.1).
  for (Facts::Parameter& parameter : facts.parameters) {
    uint32_t location = 0;
    const auto taken = [&](const Facts::Parameter& other) {
      return other.attribute == parameter.attribute && other.index == location;
    };
    while (std::ranges::any_of(facts.parameters, taken)) ++location;
    if (parameter.index == static_cast<uint32_t>(-1)) parameter.index = location;  // as_cxx wrote -1
  }
  if (!wanted || !kernel || facts.parameters.size() != wanted->getZExtValue()) {
    error =
        "each parameter of a kernel that is no pointer or reference needs one attribute: [[thread_position_in_grid]]";
  }
}

void Instrumenter::run(llvm::ModulePassManager passes) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  passes.run(module_, modules);
}

// Inlines the functions that are marked always_inline, so that a check in the library can name the user's line. Turns
// variables into registers, so that fewer accesses to memory remain.
void Instrumenter::inline_library() {
  llvm::internalizeModule(module_, [](const llvm::GlobalValue& value) {
    return value.getName() == "msl_entry" || value.getName().starts_with(visible_prefix);
  });
  for (llvm::Function& function : module_) {
    function.removeFnAttr(llvm::Attribute::OptimizeNone);
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      instruction.setMetadata(llvm::LLVMContext::MD_loop, nullptr);  // an unrolled loop would take long to compile
    }
  }
  llvm::ModulePassManager unused;
  unused.addPass(llvm::GlobalDCEPass());
  run(std::move(unused));
  for (const auto& [constant, name] : without_value_) {
    if (constant && error.empty()) error = fmt::format("the function constant {} has no value", name);
  }
  place_arrays();  // before a pass drops an array that is only written
  llvm::FunctionPassManager simplify;
  // A kernel may test a number before it divides by the number. No pass may move the division before the test: the
  // result could be infinite, and the check would report a division that the kernel never makes.
  simplify.addPass(llvm::SROAPass(llvm::SROAOptions::PreserveCFG));
  simplify.addPass(llvm::EarlyCSEPass());
  llvm::ModulePassManager passes;
  passes.addPass(llvm::GlobalOptPass());  // computes constants from function constants
  passes.addPass(llvm::AlwaysInlinerPass(/*InsertLifetime=*/false));
  passes.addPass(llvm::GlobalDCEPass());
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(simplify)));
  run(std::move(passes));
  const llvm::GlobalVariable* const constructors = module_.getGlobalVariable("llvm.global_ctors");
  if (constructors && constructors->hasInitializer() && constructors->getInitializer()->getNumOperands() > 0 &&
      error.empty()) {
    error = "the first value of a variable outside of functions is no constant of the compiler";
  }
}

// Gives each variable in threadgroup memory a range of msl_arena, the array that stands for threadgroup memory. Gaps
// lie between the ranges.
void Instrumenter::place_arrays() {
  std::vector<llvm::GlobalVariable*> variables;
  for (llvm::GlobalVariable& variable : module_.globals()) {
    if (variable.getAddressSpace() == threadgroup_space) variables.push_back(&variable);
  }
  if (variables.empty()) return;
  auto* const arena =
      new llvm::GlobalVariable(module_, llvm::ArrayType::get(llvm::Type::getInt8Ty(context_), threadgroup_arena_bytes),
                               false, llvm::GlobalValue::ExternalLinkage, nullptr, "msl_arena", nullptr,
                               llvm::GlobalValue::NotThreadLocal, threadgroup_space);
  uint64_t offset = 0;
  for (llvm::GlobalVariable* const variable : variables) {
    const uint64_t bytes = module_.getDataLayout().getTypeAllocSize(variable->getValueType());
    if (offset + bytes + threadgroup_gap_bytes > threadgroup_arena_bytes) {
      error = fmt::format("the kernel declares more threadgroup memory than {} bytes, gaps between arrays included",
                          threadgroup_arena_bytes);
      return;
    }
    facts.arrays.push_back({plain_name(variable->getName()), offset, bytes});
    variable->replaceAllUsesWith(
        llvm::ConstantExpr::getInBoundsGetElementPtr(llvm::Type::getInt8Ty(context_), arena, number(offset, 64)));
    variable->eraseFromParent();
    offset = (offset + bytes + threadgroup_gap_bytes + 255) / 256 * 256;
  }
}

// Makes the table of the kernel's own constants, so that the machine allows reads of these constants.
void Instrumenter::list_constants() {
  llvm::Type* const pointer = llvm::PointerType::get(context_, 0);
  llvm::Type* const word = llvm::Type::getInt64Ty(context_);
  llvm::StructType* const entry = llvm::StructType::get(context_, {pointer, word});
  std::vector<llvm::Constant*> entries;
  for (llvm::GlobalVariable& variable : module_.globals()) {
    if (variable.getAddressSpace() != constant_space || variable.isDeclaration()) continue;
    entries.push_back(llvm::ConstantStruct::get(
        entry, {llvm::ConstantExpr::getAddrSpaceCast(&variable, pointer),
                number(module_.getDataLayout().getTypeAllocSize(variable.getValueType()), 64)}));
  }
  facts.constants = entries.size();
  llvm::ArrayType* const table = llvm::ArrayType::get(entry, entries.size());
  new llvm::GlobalVariable(module_, table, true, llvm::GlobalValue::ExternalLinkage,
                           llvm::ConstantArray::get(table, entries), "msl_constants");
}

bool Instrumenter::is_library(const llvm::DILocation& at) const {
  // LLVM makes a name relative if the file lies in the current folder.
  return std::filesystem::path(at.getDirectory().str()) / at.getFilename().str() == library_;
}

// Returns the number of the instruction's place in the user's text: the innermost place that is not in the library.
uint32_t Instrumenter::place_of(const llvm::Instruction& instruction) {
  const llvm::DILocation* at = instruction.getDebugLoc();
  while (at && is_library(*at) && at->getInlinedAt()) at = at->getInlinedAt();
  if (!at || is_library(*at)) return 0;
  const std::string text =
      fmt::format("{}:{}", std::filesystem::path(at->getFilename().str()).filename().string(), at->getLine());
  const auto [found, is_new] = numbers_.emplace(text, static_cast<uint32_t>(facts.places.size()));
  if (is_new) facts.places.push_back(text);
  return found->second;
}

bool Instrumenter::in_library(const llvm::Instruction& instruction) const {
  const llvm::DILocation* const at = instruction.getDebugLoc();
  return !at || is_library(*at);
}

void Instrumenter::touch(llvm::Instruction& before, llvm::Value* address, llvm::Value* bytes, bool writes, bool atomic,
                         bool coherent, uint64_t alignment) {
  const unsigned space = address->getType()->getPointerAddressSpace();
  if (space != device_space && space != constant_space && space != threadgroup_space) return;
  const uint32_t place = place_of(before);
  if (writes && space == constant_space && error.empty()) {
    error = fmt::format("{}: address space: a write to constant memory", facts.places[place]);
  }
  llvm::IRBuilder<> builder(&before);
  llvm::Type* const word = builder.getInt32Ty();
  llvm::FunctionCallee hook = module_.getOrInsertFunction(atomic ? "msl_atomic" : "msl_touch", builder.getVoidTy(),
                                                          builder.getPtrTy(), builder.getInt64Ty(), word, word);
  auto* const function = llvm::cast<llvm::Function>(hook.getCallee());
  function->setDoesNotThrow();
  if (!atomic) function->setOnlyAccessesInaccessibleMemory();
  const uint64_t what = space | uint64_t{writes} << 2 | uint64_t{coherent} << 3 | alignment << 8;
  builder.CreateCall(hook, {builder.CreateAddrSpaceCast(address, builder.getPtrTy()),
                            builder.CreateZExtOrTrunc(bytes, builder.getInt64Ty()), number(what), number(place)});
}

void Instrumenter::access(llvm::Instruction& instruction, llvm::Value* address, llvm::Type* type, bool writes,
                          bool atomic, llvm::Align alignment) {
  const uint64_t bytes = module_.getDataLayout().getTypeStoreSize(type);
  // Only coherent(device) makes an access of the user's text volatile (as_cxx).
  touch(instruction, address, number(bytes, 64), writes, atomic, instruction.isVolatile(), alignment.value());
}

// Whether a value is a constant whose elements are all finite. Undefined values count as finite. Constant vectors whose
// elements differ do not count as finite.
bool is_finite(const llvm::Value* value) {
  const auto* const constant = llvm::dyn_cast<llvm::Constant>(value);
  if (!constant) return false;
  if (const auto* const scalar = llvm::dyn_cast<llvm::ConstantFP>(constant)) return scalar->getValueAPF().isFinite();
  if (llvm::isa<llvm::UndefValue>(constant)) return true;
  const llvm::Constant* const all = constant->getType()->isVectorTy() ? constant->getSplatValue() : nullptr;
  return all && is_finite(all);
}

void Instrumenter::require_finite(llvm::Instruction& instruction, llvm::Value* value, unsigned operation,
                                  bool is_result) {
  llvm::Type* const type = value->getType();
  if (!type->isFPOrFPVectorTy() || is_finite(value)) return;
  llvm::Type* const scalar = type->getScalarType();
  const uint64_t exponent = scalar->isFloatTy()    ? 0x7f800000
                            : scalar->isHalfTy()   ? 0x7c00
                            : scalar->isBFloatTy() ? 0x7f80
                                                   : 0;
  if (exponent == 0) return;
  llvm::IRBuilder<> builder(is_result ? instruction.getNextNode() : &instruction);
  builder.SetCurrentDebugLocation(instruction.getDebugLoc());
  llvm::Type* const word = builder.getIntNTy(scalar->getScalarSizeInBits());
  llvm::Type* bits = word;
  if (const auto* const vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
    bits = llvm::FixedVectorType::get(word, vector->getNumElements());
  }
  llvm::Constant* const mask = llvm::ConstantInt::get(bits, exponent);
  llvm::Value* found = builder.CreateICmpEQ(builder.CreateAnd(builder.CreateBitCast(value, bits), mask), mask);
  report_if(instruction, builder, found, operation);
}

// Inserts a call of msl_bad_number() that runs if an element of `found` is true.
void Instrumenter::report_if(llvm::Instruction& instruction, llvm::IRBuilder<>& builder, llvm::Value* found,
                             unsigned operation) {
  if (found->getType()->isVectorTy()) found = builder.CreateOrReduce(found);
  llvm::Instruction* const then = llvm::SplitBlockAndInsertIfThen(found, builder.GetInsertPoint(), false);
  builder.SetInsertPoint(then);
  const llvm::FunctionCallee hook =
      module_.getOrInsertFunction("msl_bad_number", builder.getVoidTy(), builder.getInt32Ty(), builder.getInt32Ty());
  builder.CreateCall(hook, {number(operation), number(place_of(instruction))});
}

// Inserts a check for a division of an integer by zero, and for a division of the least integer by -1. The results of
// these two divisions are undefined, and on x86 such a division would end the program.
void Instrumenter::integer_division(llvm::Instruction& instruction) {
  const unsigned opcode = instruction.getOpcode();
  const bool has_sign = opcode == llvm::Instruction::SDiv || opcode == llvm::Instruction::SRem;
  if (!has_sign && opcode != llvm::Instruction::UDiv && opcode != llvm::Instruction::URem) return;
  llvm::Value *const dividend = instruction.getOperand(0), *const divisor = instruction.getOperand(1);
  llvm::IRBuilder<> builder(&instruction);
  llvm::Type* const type = divisor->getType();
  llvm::Value* found = builder.CreateICmpEQ(divisor, llvm::Constant::getNullValue(type));
  if (has_sign) {
    const auto least = llvm::APInt::getSignedMinValue(type->getScalarSizeInBits());
    llvm::Value* const overflows =
        builder.CreateAnd(builder.CreateICmpEQ(dividend, llvm::ConstantInt::get(type, least)),
                          builder.CreateICmpEQ(divisor, llvm::Constant::getAllOnesValue(type)));
    found = builder.CreateOr(found, overflows);
  }
  if (const auto* const known = llvm::dyn_cast<llvm::Constant>(found); known && known->isNullValue()) return;
  report_if(instruction, builder, found, 7);
}

// Checks an operation on floating-point numbers. `operation` is the index of the operation's name in
// Machine::bad_number(). For additions, subtractions and multiplications a check of the result is enough: an operand
// that is not finite makes the result infinite or NaN.
void Instrumenter::arithmetic(llvm::Instruction& instruction) {
  unsigned operation = 0;
  bool operands = false, result = true;
  switch (instruction.getOpcode()) {
    case llvm::Instruction::FAdd:
      operation = 0;
      break;
    case llvm::Instruction::FSub:
      operation = 1;
      break;
    case llvm::Instruction::FMul:
      operation = 2;
      break;
    case llvm::Instruction::FDiv:
      operation = 3, operands = true;
      break;
    case llvm::Instruction::FRem:
      operation = 4, operands = true;
      break;
    case llvm::Instruction::FCmp:
      operation = 5, operands = true, result = false;
      break;
    case llvm::Instruction::Call: {
      const auto* const call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
      if (!call || !call->getType()->isFPOrFPVectorTy()) return;
      switch (call->getIntrinsicID()) {
        case llvm::Intrinsic::fabs:
        case llvm::Intrinsic::copysign:
          return;
        default:
          operation = 6, operands = true;
          break;
      }
      break;
    }
    default:
      return;
  }
  if (operands) {
    for (llvm::Use& operand : instruction.operands()) {
      if (operand->getType()->isFPOrFPVectorTy()) require_finite(instruction, operand, operation, false);
    }
  }
  if (result) require_finite(instruction, &instruction, operation, true);
}

void Instrumenter::check(llvm::Function& function) {
  std::vector<llvm::Instruction*> all;
  for (llvm::Instruction& instruction : llvm::instructions(function)) all.push_back(&instruction);
  for (llvm::Instruction* const instruction : all) {
    if (auto* const load = llvm::dyn_cast<llvm::LoadInst>(instruction)) {
      access(*load, load->getPointerOperand(), load->getType(), false, load->isAtomic(), load->getAlign());
    } else if (auto* const store = llvm::dyn_cast<llvm::StoreInst>(instruction)) {
      access(*store, store->getPointerOperand(), store->getValueOperand()->getType(), true, store->isAtomic(),
             store->getAlign());
    } else if (auto* const update = llvm::dyn_cast<llvm::AtomicRMWInst>(instruction)) {
      access(*update, update->getPointerOperand(), update->getValOperand()->getType(), true, true, update->getAlign());
    } else if (auto* const exchange = llvm::dyn_cast<llvm::AtomicCmpXchgInst>(instruction)) {
      access(*exchange, exchange->getPointerOperand(), exchange->getNewValOperand()->getType(), true, true,
             exchange->getAlign());
    } else if (auto* const copy = llvm::dyn_cast<llvm::MemTransferInst>(instruction)) {
      touch(*copy, copy->getRawSource(), copy->getLength(), false, false, copy->isVolatile(), 1);
      touch(*copy, copy->getRawDest(), copy->getLength(), true, false, copy->isVolatile(), 1);
    } else if (auto* const set = llvm::dyn_cast<llvm::MemSetInst>(instruction)) {
      touch(*set, set->getRawDest(), set->getLength(), true, false, set->isVolatile(), 1);
    } else if (auto* const cast = llvm::dyn_cast<llvm::AddrSpaceCastInst>(instruction)) {
      if (!in_library(*cast) && error.empty()) {
        error = fmt::format("{}: address space: a cast from {} to {} memory", facts.places[place_of(*cast)],
                            name(static_cast<Space>(cast->getSrcAddressSpace())),
                            name(static_cast<Space>(cast->getDestAddressSpace())));
      }
    } else if (auto* const call = llvm::dyn_cast<llvm::CallInst>(instruction)) {
      const llvm::Function* const called = call->getCalledFunction();
      if (called && called->getName().starts_with("msl_") && called->isDeclaration() && call->arg_size() > 0 &&
          !called->getName().starts_with("msl_precise_")) {
        // These functions of the machine take a place as the last argument.
        call->setArgOperand(call->arg_size() - 1, number(place_of(*call)));
      }
    }
  }
  for (llvm::Instruction* const instruction : all) integer_division(*instruction);
  if (!fast_math_) return;
  for (llvm::Instruction* const instruction : all) arithmetic(*instruction);
}

}  // namespace

Facts instrument(llvm::Module& module, const std::map<std::string, double>& constants, bool fast_math,
                 const std::string& library, std::string& error) {
  Instrumenter instrumenter(module, fast_math, library);
  instrumenter.find_parameters();
  instrumenter.set_function_constants(constants);
  if (llvm::GlobalVariable* const used = module.getGlobalVariable("msl_kernel")) used->eraseFromParent();
  instrumenter.inline_library();
  for (llvm::Function& function : module) {
    if (!function.isDeclaration()) instrumenter.check(function);
  }
  instrumenter.list_constants();
  llvm::StripDebugInfo(module);
  error = instrumenter.error;
  return std::move(instrumenter.facts);
}

}  // namespace attn::msl
