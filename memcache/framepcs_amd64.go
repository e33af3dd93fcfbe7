package memcache

// framePCs stores the return addresses of the functions that run on this goroutine, the innermost
// first, and returns their number. It follows the frame pointers, as the runtime does for its own
// profiles. whole reports whether they reach the goroutine's first function. runtime.Callers
// returns more, because it counts inlined functions.
//
//go:noescape
func framePCs(pcs *uintptr, most int) (n int, whole bool)
