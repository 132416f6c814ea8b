// A CUDA device in host memory, for a torch built without CUDA. See README.md.
//
// Each operator on a "cuda" tensor reaches `run_on_host`, which lends the CPU's kernel CPU tensors over the same
// memory and gives its results back as "cuda" tensors. Mixed devices are refused before the kernel could accept them.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace pretend {
using at::Tensor;
using c10::DataPtr, c10::Device, c10::DeviceIndex, c10::DispatchKey, c10::DispatchKeySet, c10::IValue, c10::Storage;
using Stack = torch::jit::Stack;
using Type = c10::TypePtr;

constexpr auto CUDA = c10::DeviceType::CUDA;
const Device HOST{c10::DeviceType::CPU};
thread_local DeviceIndex current_index = 0;

DeviceIndex num_devices() {
  static const char* configured = std::getenv("PRETEND_CUDA_DEVICES");
  static const DeviceIndex number = configured ? std::atoi(configured) : 1;
  return number;
}

Device current_device() { return {CUDA, current_index}; }
Device indexed(Device device) { return device.is_cuda() && !device.has_index() ? current_device() : device; }

void select(Device device) {
  TORCH_CHECK(device.index() < num_devices(), "CUDA error: invalid device ordinal");
  if (device.has_index()) current_index = device.index();
}

// ---- memory ----

std::atomic<int64_t> bytes_in_use{0}, peak_bytes{0};

// Keeps the memory of a storage alive under another device's name; counted as device memory where that is "cuda".
struct Lease {
  Storage owner;
  int64_t device_bytes;
};

void end_lease(void* pointer) {
  auto* lease = static_cast<Lease*>(pointer);
  bytes_in_use -= lease->device_bytes;
  delete lease;
}

DataPtr lend(const Storage& owner, Device device) {
  const int64_t bytes = device.is_cuda() ? static_cast<int64_t>(owner.nbytes()) : 0;
  const int64_t total = bytes_in_use += bytes;
  int64_t peak = peak_bytes;
  while (peak < total && !peak_bytes.compare_exchange_weak(peak, total)) {}
  return {const_cast<void*>(owner.data()), new Lease{owner, bytes}, end_lease, device};
}

struct DeviceAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    auto* host = c10::GetCPUAllocator();
    return lend(Storage(Storage::use_byte_size_t(), bytes, host->allocate(bytes), host), current_device());
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} device_allocator;

// Page-locked memory is host memory whose addresses are known.
std::mutex pinned_mutex;
std::map<const char*, size_t> pinned_blocks;

bool is_pinned(const void* address) {
  std::lock_guard lock(pinned_mutex);
  auto block = pinned_blocks.upper_bound(static_cast<const char*>(address));
  return block != pinned_blocks.begin() && (--block)->first + block->second > static_cast<const char*>(address);
}

void free_pinned(void* memory) {
  std::lock_guard lock(pinned_mutex);
  pinned_blocks.erase(static_cast<char*>(memory));
  std::free(memory);
}

struct PinnedAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
    std::lock_guard lock(pinned_mutex);
    pinned_blocks[static_cast<char*>(memory)] = bytes;
    return {memory, memory, free_pinned, HOST};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} pinned_allocator;

// ---- random numbers ----

// A CPU generator, so that CPU kernels draw from it; its type says that it belongs to the device.
struct DeviceGenerator final : at::CPUGeneratorImpl {};

at::Generator& generator_of(DeviceIndex index) {
  static std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < num_devices(); ++i) made.push_back(at::make_generator<DeviceGenerator>());
    return made;
  }();
  return generators.at(index < 0 ? current_index : index);
}

// ---- what torch asks a device for; everything is synchronous ----

struct Guard final : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  Device getDevice() const override { return current_device(); }
  Device exchangeDevice(Device device) const override {
    const Device before = current_device();
    select(device);
    return before;
  }
  void setDevice(Device device) const override { select(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_index = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return num_devices(); }
  c10::Stream getStream(Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, indexed(device));
  }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  void record(void**, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return num_devices(); }
  DeviceIndex deviceCount() const override { return num_devices(); }
  DeviceIndex current_device() const override { return current_index; }
  DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(DeviceIndex index) const override { select({CUDA, index}); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return Guard().exchangeDevice({CUDA, index}).index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  void deviceSynchronize(DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return generator_of(index); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<DeviceGenerator>(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
};

// For DistributedDataParallel's and the profiler's measurements: the host's clock.
struct Timer final : c10d::Timer {
  explicit Timer(Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    return from == c10d::kUnsetTime || to < from ? std::nullopt : std::optional(to - from);
  }
};

struct ProfilerStubs final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  void record(DeviceIndex* device, Event* event, int64_t* nanoseconds) const override {
    if (device) *device = current_index;
    if (event) *event = std::make_shared<int64_t>(c10::getTime());
    if (nanoseconds) *nanoseconds = c10::getTime();
  }
  float elapsed(const Event* from, const Event* to) const override {  // microseconds
    return (*static_cast<int64_t*>(to->get()) - *static_cast<int64_t*>(from->get())) / 1e3f;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    for (int i = 0; i < num_devices(); ++i) visit(i);
  }
  void synchronize() const override {}
} profiler_stubs;

// ---- counters: operators sent to the device, and calls for which the host waits for it ----

using Counts = std::map<std::string, int64_t>;
std::mutex counts_mutex;
Counts sent, waits;
std::atomic<int> sync_debug_mode{0};  // torch.cuda.set_sync_debug_mode: 0 default, 1 warn, 2 error
thread_local bool is_capturing = false, is_replaying = false;

void count_wait(const std::string& name) {
  TORCH_CHECK(!is_capturing, "CUDA error: operation not permitted when stream is capturing: ", name);
  TORCH_CHECK(sync_debug_mode < 2, "called a synchronizing CUDA operation: ", name);
  if (sync_debug_mode == 1) TORCH_WARN("called a synchronizing CUDA operation: ", name);
  std::lock_guard lock(counts_mutex);
  ++waits[name];
}

c10::Dict<std::string, int64_t> as_dict(const Counts& counts) {
  std::lock_guard lock(counts_mutex);
  c10::Dict<std::string, int64_t> dict;
  for (const auto& [name, count] : counts) dict.insert(name, count);
  return dict;
}

// Operators whose result's size, or result itself, a GPU must report to the host.
const std::unordered_set<std::string> WAITING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::bincount", "aten::equal"};

IValue argument(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> values, const char* name) {
  const auto index = schema.argumentIndexWithName(name);
  return index ? values[*index] : IValue();
}

bool waits_for_device(const std::string& name, const c10::FunctionSchema& schema, c10::ArrayRef<IValue> values) {
  if (WAITING.count(name)) return true;
  if (name == "aten::copy_" || name == "aten::_copy_from") {
    const Tensor &to = values[0].toTensor(), &from = values[1].toTensor();
    if (to.is_cuda() == from.is_cuda() || from.numel() == 0) return false;
    const Tensor& host = to.is_cuda() ? from : to;
    const bool non_blocking = argument(schema, values, "non_blocking").toBool();
    return !non_blocking || (!to.is_cuda() && !is_pinned(host.storage().data()));
  }
  if (name == "aten::repeat_interleave.Tensor") return argument(schema, values, "output_size").isNone();
  if (schema.argumentIndexWithName("permuted_lengths_sum"))
    return argument(schema, values, "permuted_lengths_sum").isNone();
  if (name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put_impl_", 0) == 0) {
    const IValue indices = argument(schema, values, "indices");  // a mask becomes a list of places
    if (!indices.isList()) return false;
    for (const IValue& index : indices.toListRef())
      if (index.isTensor() && index.toTensor().defined() && index.toTensor().scalar_type() == at::kBool) return true;
  }
  return false;
}

// Views and changes of form are the host's own business.
bool is_sent(const std::string& name, const c10::FunctionSchema& schema) {
  if (name.rfind("aten::set_", 0) == 0 || name.rfind("aten::resize_", 0) == 0) return false;
  if (schema.returns().empty()) return true;
  for (const auto& result : schema.returns())
    if (!result.alias_info() || result.alias_info()->isWrite()) return true;
  return false;
}

void count(const std::string& name, const c10::FunctionSchema& schema, c10::ArrayRef<IValue> values) {
  if (is_replaying) return;
  if (waits_for_device(name, schema, values)) count_wait(name);
  if (!is_sent(name, schema)) return;
  std::lock_guard lock(counts_mutex);
  ++sent[name];
}

// ---- operators ----

// A GPU's kernels take tensors of both devices in these; where a set says so, only if the first is on the device.
const std::unordered_set<std::string> ANY_MIX = {"aten::copy_", "aten::_copy_from", "aten::set_.source_Tensor"};
const std::unordered_set<std::string> HOST_INDICES = {
    "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::_index_put_impl_"};

bool holds_tensors(const Type& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return true;
    case c10::TypeKind::ListType: return holds_tensors(type->expectRef<c10::ListType>().getElementType());
    case c10::TypeKind::OptionalType: return holds_tensors(type->expectRef<c10::OptionalType>().getElementType());
    default: return false;
  }
}

template <typename F>
IValue each(const IValue& value, F change) {
  const auto list = value.toList();
  if (!holds_tensors(list.elementType())) return value;
  c10::impl::GenericList changed(list.elementType());
  for (const IValue& element : list) changed.push_back(change(element));
  return changed;
}

// The arguments and results of one call, as seen from the host's and from the program's side.
class Call {
 public:
  Call(const std::string& name, const c10::FunctionSchema& schema) : name_(name), writes_(schema.is_mutable()) {}

  IValue to_host(const IValue& value) {
    if (value.isTensor()) return host_tensor(value.toTensor());
    if (value.isList()) return each(value, [this](const IValue& element) { return to_host(element); });
    if (value.isStorage() && value.toStorage().device().is_cuda()) return host_storage(value.toStorage());
    if (!value.isDevice()) return value;
    requested_ = indexed(value.toDevice());
    return HOST;
  }

  IValue from_host(const IValue& value) {
    if (value.isTensor()) return device_tensor(value.toTensor());
    if (value.isList()) return each(value, [this](const IValue& element) { return from_host(element); });
    return value;
  }

  // Carries over what an in-place kernel did to a tensor's form: sizes (resize_) or storage (set_).
  void adopt_changes() {
    for (const auto& [host, original] : written_) {
      auto* target = original.unsafeGetTensorImpl();
      const Storage& storage = host.storage();
      const auto known = device_storages_.find(storage.unsafeGetStorageImpl());
      if (known == device_storages_.end()) {
        target->set_storage_keep_dtype(device_storage(storage));
      } else if (known->second.data() != storage.data() || known->second.nbytes() != storage.nbytes()) {
        known->second.set_data_ptr_noswap(lend(storage, known->second.device()));
        known->second.set_nbytes(storage.nbytes());
      }
      if (host.sizes() != original.sizes() || host.strides() != original.strides() ||
          host.storage_offset() != original.storage_offset())
        target->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  Device device() const { return requested_ ? *requested_ : found_ ? *found_ : current_device(); }

 private:
  static Tensor same_form(Storage storage, DispatchKey key, const Tensor& like) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return tensor;
  }

  IValue host_tensor(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const bool scalar = tensor.is_cpu() && tensor.dim() == 0;  // a GPU's kernels take those, too
    if (!scalar) require_same(tensor.device());
    if (!tensor.is_cuda()) {
      originals_.emplace(tensor.unsafeGetTensorImpl(), tensor);
      if (tensor.has_storage()) device_storages_.emplace(tensor.storage().unsafeGetStorageImpl(), tensor.storage());
      return tensor;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "pretended device: no ", tensor.layout(), " tensors");
    Tensor host = same_form(host_storage(tensor.storage()), DispatchKey::CPU, tensor);
    originals_.emplace(host.unsafeGetTensorImpl(), tensor);
    alive_.push_back(host);
    if (writes_) written_.emplace_back(host, tensor);
    return host;
  }

  Storage host_storage(const Storage& storage) {
    Storage& host = host_storages_[storage.unsafeGetStorageImpl()];
    if (!host) {
      const bool resizable = true;
      host = Storage(Storage::use_byte_size_t(), storage.nbytes(), lend(storage, HOST), c10::GetCPUAllocator(), resizable);
      device_storages_.emplace(host.unsafeGetStorageImpl(), storage);
    }
    return host;
  }

  IValue device_tensor(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    if (const auto known = originals_.find(tensor.unsafeGetTensorImpl()); known != originals_.end()) return known->second;
    Storage storage = device_storage(tensor.storage());
    if (!storage.device().is_cuda()) return tensor;  // a view of a CPU argument, or asked for on the CPU
    Tensor device = same_form(storage, DispatchKey::CUDA, tensor);
    originals_.emplace(tensor.unsafeGetTensorImpl(), device);
    alive_.push_back(tensor);
    return device;
  }

  Storage device_storage(const Storage& storage) {
    Storage& known = device_storages_[storage.unsafeGetStorageImpl()];
    if (!known)
      known = device().is_cpu() ? storage
                                : Storage(Storage::use_byte_size_t(), storage.nbytes(), lend(storage, device()),
                                          &device_allocator, /*resizable=*/true);
    return known;
  }

  void require_same(Device device) {
    const bool allowed = ANY_MIX.count(name_) || (HOST_INDICES.count(name_) && found_ && found_->is_cuda() && device.is_cpu());
    TORCH_CHECK(!found_ || *found_ == device || allowed,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                found_->is_cuda() ? *found_ : device, " and ", found_->is_cuda() ? device : *found_,
                "! (when checking arguments of ", name_, ")");
    if (!found_ || device.is_cuda()) found_ = device;
  }

  const std::string& name_;
  const bool writes_;
  std::optional<Device> found_, requested_;
  std::unordered_map<const c10::TensorImpl*, Tensor> originals_;  // host tensor to the program's
  std::unordered_map<const c10::StorageImpl*, Storage> host_storages_, device_storages_;
  std::vector<std::pair<Tensor, Tensor>> written_;  // host's, program's
  std::vector<Tensor> alive_;                       // their addresses are keys
};

bool is_optional_generator(const Type& type) {
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
}

IValue device_generator(const IValue& given, Device device) {
  if (given.isNone()) return generator_of(device.is_cuda() ? device.index() : 0);
  TORCH_CHECK(dynamic_cast<DeviceGenerator*>(given.toGenerator().unsafeGetGeneratorImpl()),
              "Expected a 'cuda' device type for generator but found 'cpu'");
  return given;
}

// FBGEMM's training operators take the tables of both devices (host_weights and dev_weights, momentum1_host and
// momentum1_dev): the CPU's kernels read the former. uvm_... are those in unified memory.
void tables_as_hosts(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> given, IValue* host_values) {
  for (size_t host = 0; host < schema.arguments().size(); ++host) {
    std::string name = schema.arguments()[host].name();
    const auto at = name.find("host");
    if (at == std::string::npos) continue;
    const auto device = schema.argumentIndexWithName(name.replace(at, 4, "dev"));
    const auto unified = schema.argumentIndexWithName(name.replace(at, 3, "uvm"));
    if (!device) continue;
    const bool in_unified = unified && given[*unified].toTensor().numel() > 0;
    TORCH_CHECK_NOT_IMPLEMENTED(!in_unified || given[*device].toTensor().numel() == 0,
                                "pretended device: tables in unified memory beside others");
    host_values[host] = host_values[in_unified ? *unified : *device];
  }
}

// NCCL is a gloo group of its own: collectives of the device's tensors run on it as those of CPU tensors would.
IValue group_of_nccl(const IValue& value) {
  static std::mutex mutex;
  static std::map<c10d::Backend*, c10::intrusive_ptr<c10d::ProcessGroup>> twins;
  const auto group = value.toCustomClass<c10d::ProcessGroup>();
  const auto backend = group->getBackend(CUDA);
  const auto on_host = group->hasBackendForDeviceType(HOST.type()) ? group->getBackend(HOST.type()) : nullptr;
  TORCH_CHECK(backend != on_host, "gloo with a CUDA tensor: invalid tensor type (expected device=cpu)");
  std::lock_guard lock(mutex);
  auto& twin = twins[backend.get()];
  if (!twin) {
    twin = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), group->getRank(), group->getSize());
    twin->setBackend(HOST.type(), c10d::ProcessGroup::BackendType::GLOO, backend);
    twin->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  }
  return twin;
}

// FBGEMM's lookup in data-parallel tables builds its part of the graph inside the device's kernel: arguments are
// copied, not aliased, so that autograd follows them.
bool builds_graph(const std::string& name, const c10::FunctionSchema& schema, c10::ArrayRef<IValue> given) {
  if (name.rfind("fbgemm::", 0) != 0 || schema.is_mutable() || !c10::GradMode::is_enabled()) return false;
  if (c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutogradCUDA)) return false;
  return std::any_of(given.begin(), given.end(),
                     [](const IValue& value) { return value.isTensor() && value.toTensor().requires_grad(); });
}

void run_differentiably(const c10::OperatorHandle& op, Stack* stack, size_t first, size_t results, Device device) {
  for (size_t i = first; i < stack->size(); ++i)
    if ((*stack)[i].isTensor() && (*stack)[i].toTensor().is_cuda()) (*stack)[i] = (*stack)[i].toTensor().to(HOST);
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  for (size_t i = stack->size() - results; i < stack->size(); ++i)
    if ((*stack)[i].isTensor()) (*stack)[i] = (*stack)[i].toTensor().to(device);
}

// ---- graphs: operators are recorded as they are sent, and sent again as one ----

struct Operation {
  c10::OperatorHandle op;
  std::vector<IValue> given, results;
};
using Graph = std::vector<Operation>;
Graph captured;
std::vector<Graph> graphs;

// What a graph keeps of an argument: of the device's tensors their place, whatever memory they are given later; of the
// host's their value.
IValue kept(const IValue& value) {
  if (value.isList()) return each(value, kept);
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  const Tensor& tensor = value.toTensor();
  return tensor.is_cpu() ? tensor.clone() : Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(0, false));
}

void list_tensors(const IValue& value, std::vector<Tensor>& tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
  if (value.isList())
    for (const IValue& element : value.toListRef()) list_tensors(element, tensors);
}

// Tensors of `values` whose memory is none of the arguments'.
std::vector<Tensor> new_tensors(const std::vector<IValue>& given, const std::vector<IValue>& values) {
  std::vector<Tensor> arguments, results;
  for (const IValue& value : given) list_tensors(value, arguments);
  for (const IValue& value : values) list_tensors(value, results);
  results.erase(std::remove_if(results.begin(), results.end(), [&](const Tensor& result) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const Tensor& tensor) { return tensor.is_alias_of(result); });
  }), results.end());
  return results;
}

void begin_capture() {
  TORCH_CHECK(!is_capturing, "CUDA error: operation not permitted when stream is capturing");
  is_capturing = true;
}

// On a GPU nothing has been computed yet: what looks at results before a replay sees NaN.
int64_t end_capture() {
  is_capturing = false;
  for (const Operation& operation : captured)
    for (const Tensor& result : new_tensors(operation.given, operation.results))
      if (result.is_floating_point()) std::memset(result.storage().mutable_data(), 0xff, result.storage().nbytes());
  graphs.push_back(std::exchange(captured, {}));
  return static_cast<int64_t>(graphs.size()) - 1;
}

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack);

void replay(int64_t number) {
  TORCH_CHECK(!is_capturing, "pretended device: no graph in a graph");
  is_replaying = true;
  for (const Operation& operation : graphs.at(number)) {
    Stack stack(operation.given);
    run_on_host(operation.op, DispatchKeySet(DispatchKey::CUDA), &stack);
    const auto places = new_tensors(operation.given, operation.results), results = new_tensors(operation.given, stack);
    for (size_t i = 0; i < places.size(); ++i)
      std::memcpy(places[i].storage().mutable_data(), results[i].storage().data(), places[i].storage().nbytes());
  }
  is_replaying = false;
  std::lock_guard lock(counts_mutex);
  ++sent["graph"];
}

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = toString(op.operator_name());
  const size_t num_arguments = schema.arguments().size(), num_results = schema.returns().size();
  const size_t first = stack->size() - num_arguments;
  const std::vector<IValue> given(stack->begin() + first, stack->end());
  Call call(name, schema);
  std::vector<IValue> host;
  for (const IValue& value : given) host.push_back(call.to_host(value));
  count(name, schema, given);
  std::vector<IValue> recorded;
  if (is_capturing) std::transform(given.begin(), given.end(), std::back_inserter(recorded), kept);
  if (builds_graph(name, schema, given)) return run_differentiably(op, stack, first, num_results, call.device());
  for (size_t i = 0; i < num_arguments; ++i) {
    const auto& parameter = schema.arguments()[i];
    if (is_optional_generator(parameter.type())) host[i] = device_generator(given[i], call.device());
    if (parameter.name() == "weights_placements") host[i] = at::full_like(host[i].toTensor(), 3);  // EmbeddingLocation.HOST
  }
  if (name.rfind("c10d::", 0) == 0)
    if (const auto group = schema.argumentIndexWithName("process_group")) host[*group] = group_of_nccl(given[*group]);
  if (name.find("pt2_wrapper") != std::string::npos) tables_as_hosts(schema, given, host.data());
  std::move(host.begin(), host.end(), stack->begin() + first);
  {
    at::AutoDispatchBelowADInplaceOrView without_autograd;
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  call.adopt_changes();
  for (size_t i = stack->size() - num_results; i < stack->size(); ++i) (*stack)[i] = call.from_host((*stack)[i]);
  if (is_capturing) captured.push_back({op, std::move(recorded), {stack->end() - num_results, stack->end()}});
}

// ---- the two operators that make memory ----

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(indexed(device.value_or(current_device())));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator, DispatchKeySet(DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(indexed(device.value_or(current_device())));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator, DispatchKeySet(DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Registers `run_on_host` for every operator with a CPU kernel and none for the device (composite kernels would come
// before the fallback), for those on lists of tensors, which have kernels of their own on GPUs alone, and in place of
// c10d's. To be called again once a library has brought operators of its own.
int64_t cover() {
  static std::vector<std::unique_ptr<torch::Library>> libraries;
  static std::set<std::string> covered;
  NoWarnings handler;
  c10::WarningUtils::WarningHandlerGuard quietly(&handler);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& operator_name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(operator_name);
    const std::string name = toString(operator_name), library = name.substr(0, name.find("::"));
    const bool on_lists = operator_name.name.rfind("aten::_foreach_", 0) == 0;
    if (!op || !(on_lists || op->hasKernelForDispatchKey(DispatchKey::CPU))) continue;
    if (op->hasKernelForDispatchKey(DispatchKey::CUDA) && library != "c10d") continue;
    if (!covered.insert(name).second) continue;
    auto kind = torch::Library::IMPL;
    libraries.push_back(std::make_unique<torch::Library>(kind, library, DispatchKey::CUDA, __FILE__, __LINE__));
    libraries.back()->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
  return static_cast<int64_t>(covered.size());
}
}  // namespace pretend

namespace c10::detail {
C10_REGISTER_GUARD_IMPL(CUDA, pretend::Guard)
}

namespace at {
using CUDAHooks = pretend::Hooks;  // the name torch looks for
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace c10d {
using PretendTimer = pretend::Timer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, pretend::CUDA, PretendTimer)
}  // namespace c10d

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  c10::SetAllocator(pretend::CUDA, &pretend::device_allocator);
  torch::profiler::impl::registerCUDAMethods(&pretend::profiler_stubs);
  m.impl("empty.memory_format", TORCH_FN(pretend::empty));
  m.impl("empty_strided", TORCH_FN(pretend::empty_strided));
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&pretend::run_on_host>());  // has no CPU kernel by name
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&pretend::run_on_host>()); }

TORCH_LIBRARY(pretend_cuda, m) {
  using namespace pretend;
  m.def("cover() -> int", cover);
  m.def("current() -> int", [] { return static_cast<int64_t>(current_index); });
  m.def("select(int index) -> ()", [](int64_t index) { select({CUDA, static_cast<DeviceIndex>(index)}); });
  m.def("memory() -> (int, int)", [] { return std::make_tuple(bytes_in_use.load(), peak_bytes.load()); });
  m.def("reset_peak() -> ()", [] { peak_bytes = bytes_in_use.load(); });
  m.def("rng_state(int index) -> Tensor", [](int64_t index) { return generator_of(index).get_state(); });
  m.def("set_rng_state(int index, Tensor state) -> ()",
        [](int64_t index, const Tensor& state) { generator_of(index).set_state(state); });
  m.def("seed(int index, int seed) -> ()",
        [](int64_t index, int64_t seed) { generator_of(index).set_current_seed(seed); });
  m.def("sent() -> Dict(str, int)", [] { return as_dict(sent); });
  m.def("waits() -> Dict(str, int)", [] { return as_dict(waits); });
  m.def("wait(str name) -> ()", count_wait);
  m.def("begin_capture() -> ()", begin_capture);
  m.def("end_capture() -> int", end_capture);
  m.def("replay(int graph) -> ()", replay);
  m.def("is_capturing() -> bool", [] { return is_capturing; });
  m.def("set_sync_debug_mode(int mode) -> ()", [](int64_t mode) { sync_debug_mode = static_cast<int>(mode); });
  m.def("sync_debug_mode() -> int", [] { return static_cast<int64_t>(sync_debug_mode.load()); });
}
