package transfer

// The limits that a Config with zero values has.
const (
	DefaultMaxCachedBytes   = 256 << 20
	DefaultMaxCachedBuffers = 1024
)

// Config are the options of a [Pool].
type Config struct {
	// MaxCachedBytes limits the pinned memory that the pool keeps for later Gets. When it is
	// exceeded, the pool frees memory, approximately the least recently used first. 0 is
	// [DefaultMaxCachedBytes]; negative keeps none.
	MaxCachedBytes int64
	// MaxCachedBuffers limits the allocations of one size class that the pool keeps. Any more are
	// freed at once. 0 is [DefaultMaxCachedBuffers]; negative keeps none.
	MaxCachedBuffers int
	// MaxBytes limits the pinned memory that the driver holds for the pool at any moment: memory
	// that is out, cached, being allocated or being freed, or that the driver refused to free.
	// Registered slices don't count. A Get that needs more waits for pending frees, frees cached
	// memory, and fails with a [LimitError] if that does not suffice. 0 is no limit.
	MaxBytes int64
	// Observer is notified of copies and driver calls. nil is no observer, which costs nothing.
	Observer Observer
}

// orDefault returns n, but normal if n is 0, and 0 if n is negative.
func orDefault(n, normal int64) int64 {
	if n == 0 {
		return normal
	}
	return max(n, 0)
}
