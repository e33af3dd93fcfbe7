package device

// ModuleLoader is implemented by devices whose kernels are compiled code.
type ModuleLoader interface {
	// LoadModule loads compiled kernels (cuModuleLoadDataEx): PTX, which the driver compiles for
	// the device, or a cubin or fatbin for it. If the device can't run the image, the error gives
	// the reason; it wraps [ErrUnsupported] if the image has no code for devices of its kind. The
	// image may be reused after the call.
	LoadModule(image []byte) (Module, error)
}

// Module is compiled code on one device. It is safe for concurrent use.
type Module interface {
	// Kernel returns the kernel of that name, for [Launch].Kernel (cuModuleGetFunction). If the
	// module does not have it, the error wraps [ErrInvalid].
	Kernel(name string) (any, error)
	// Close unloads the module once everything that is queued on the device is done
	// (cuModuleUnload). Its kernels must not be launched after Close. It is idempotent; the
	// device's Close unloads the modules that are still loaded.
	Close() error
}
