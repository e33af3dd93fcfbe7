package device

// ModuleLoader is implemented by devices whose kernels are compiled code.
type ModuleLoader interface {
	// LoadModule loads compiled kernels: PTX, which the driver compiles for the device, or a cubin or fatbin
	// for it (cuModuleLoadDataEx). An image that the device can't run is an error with the reason; it wraps
	// [ErrUnsupported] if the image has no code for devices of its kind. The image may be reused after the call.
	LoadModule(image []byte) (Module, error)
}

// Module is compiled code on one device. It is safe for concurrent use.
type Module interface {
	// Kernel finds a kernel by its name in the module, for [Launch].Kernel (cuModuleGetFunction). A name
	// that the module does not have is an error that wraps [ErrInvalid].
	Kernel(name string) (any, error)
	// Close unloads the module once everything that is queued on the device is done (cuModuleUnload). Its
	// kernels must not be launched after. It is idempotent; the device's Close unloads what is left.
	Close() error
}
