package memcache

// framePCs are the return addresses of the functions that run on this goroutine, the innermost first, by their frame
// pointers, as the runtime finds them for its own profiles; whole: they go to the goroutine's beginning. They are not what
// runtime.Callers returns, which counts inlined functions.
//
//go:noescape
func framePCs(pcs *uintptr, most int) (n int, whole bool)
