package memcache

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
)

// Classes of errors, for errors.Is.
var (
	// ErrClosed: the cache is closed.
	ErrClosed = errors.New("cache is closed")
	// ErrFreed: the block was freed before.
	ErrFreed = errors.New("block was already freed")
	// ErrInvalid: an argument is invalid, and nothing changed. It is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
)

// ErrReleased is the error of a request of a private pool that was released.
var ErrReleased = errors.New("private pool was released")
