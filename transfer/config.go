package transfer

// The limits of a Config without its own.
const (
	DefaultMaxCachedBytes   = 256 << 20
	DefaultMaxCachedBuffers = 1024
)

// Config are the options of a [Pool].
type Config struct {
	// MaxCachedBytes is how much pinned memory the pool keeps for later Gets. What is over it goes back to
	// the driver, about the least recently used first. 0 is [DefaultMaxCachedBytes]; negative keeps none.
	MaxCachedBytes int64
	// MaxCachedBuffers is how many allocations of one size class it keeps. What is over it goes back to the driver at
	// once. 0 is [DefaultMaxCachedBuffers]; negative keeps none.
	MaxCachedBuffers int
	// MaxBytes is how much pinned memory the driver may hold for the pool at any moment: what is out, cached, being allocated,
	// being freed, and what it refused to free; but not what is registered. A Get that needs more waits for what is being freed,
	// gives back what is cached, and fails with a [LimitError] if that is not enough. 0 is no limit.
	MaxBytes int64
	// Observer is told of copies and driver calls. nil: nobody is, and it costs nothing.
	Observer Observer
}

// orDefault is n, the default for 0, and 0 for less.
func orDefault(n, normal int64) int64 {
	if n == 0 {
		return normal
	}
	return max(n, 0)
}
