// A device in host memory behind torch's key PrivateUse1. What it has no kernel for is computed by the CPU's.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kNeuron = c10::DeviceType::PrivateUse1;

c10::DeviceIndex core_of_this_process() {
  const char* rank = std::getenv("LOCAL_RANK");
  return rank ? static_cast<c10::DeviceIndex>(std::atoi(rank)) : 0;
}

c10::DeviceIndex cores() {
  const char* count = std::getenv("NEURON_STANDIN_CORES");
  return count ? static_cast<c10::DeviceIndex>(std::atoi(count)) : 2;
}

thread_local c10::DeviceIndex current = core_of_this_process();

struct HostMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? std::malloc(bytes) : nullptr;
    return {data, data, &std::free, c10::Device(kNeuron, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &std::free;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

HostMemory memory;
REGISTER_ALLOCATOR(kNeuron, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kNeuron;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return c10::Device(kNeuron, current);
  }
  void setDevice(c10::Device device) const override {
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return cores();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

at::Generator& generator() {
  static at::Generator own = at::detail::createCPUGenerator(0);
  return own;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return cores();
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = memory.allocate(bytes);
    std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kNeuron, current)));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kNeuron, current)));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride),
      &memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), C10_AS_INTARRAYREF_SLOW(size), std::nullopt);
  return self;
}

at::Tensor& set_range(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset.expect_int());
  if (stride.empty()) {
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  } else {
    impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  }
  return self;
}

at::Tensor& set_all(at::Tensor& self, at::Storage storage) {
  auto elements = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_range(self, std::move(storage), 0, {c10::SymInt(elements)}, {});
}

// The same memory as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& self) {
  auto storage = c10::Storage(
      c10::Storage::use_byte_size_t(), self.storage().nbytes(), c10::DataPtr(self.storage().mutable_data(), c10::Device(c10::kCPU)));
  auto host = at::empty({0}, self.options().device(c10::kCPU));
  auto* impl = host.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(self.storage_offset());
  impl->set_sizes_and_strides(self.sizes(), self.strides());
  return host;
}

at::Tensor host_of(const at::Tensor& self) {
  return self.device().type() == kNeuron ? on_host(self) : self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  host_of(to).copy_(host_of(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Tensor& bernoulli(at::Tensor& self, double p, std::optional<at::Generator> given) {
  on_host(self).bernoulli_(p, given.value_or(generator()));
  return self;
}

at::Tensor& normal(at::Tensor& self, double mean, double std, std::optional<at::Generator> given) {
  on_host(self).normal_(mean, std, given.value_or(generator()));
  return self;
}

at::Tensor& uniform(at::Tensor& self, double from, double to, std::optional<at::Generator> given) {
  on_host(self).uniform_(from, to, given.value_or(generator()));
  return self;
}

void computed_by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_range);
  m.impl("set_.source_Storage", set_all);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("bernoulli_.float", bernoulli);
  m.impl("normal_", normal);
  m.impl("uniform_", uniform);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&computed_by_cpu>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

TORCH_LIBRARY(neuron_standin, m) {
  m.def("start", []() {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
  m.def("on_host", on_host);
  m.def("current_device", []() { return static_cast<int64_t>(current); });
  m.def("set_device", [](int64_t index) { current = static_cast<c10::DeviceIndex>(index); });
  m.def("device_count", []() { return static_cast<int64_t>(cores()); });
  m.def("seed", [](int64_t seed) { generator().set_current_seed(static_cast<uint64_t>(seed)); });
  m.def("get_rng_state", []() { return generator().get_state(); });
  m.def("set_rng_state", [](const at::Tensor& state) { generator().set_state(state); });
}
