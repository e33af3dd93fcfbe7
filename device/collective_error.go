package device

import (
	"errors"
	"fmt"
)

// Classes of errors that end a communicator, for errors.Is.
var (
	// ErrTimeout: other ranks did not come in time.
	ErrTimeout = errors.New("timed out")
	// ErrMismatch: ranks called different operations, or the same one with other counts, types, reductions or roots.
	ErrMismatch = errors.New("ranks don't match")
	// ErrAborted: a rank has aborted or closed its communicator, or the library has lost it.
	ErrAborted = errors.New("aborted")
)

// CollectiveError is what has ended a communicator, the same on every rank of a process.
type CollectiveError struct {
	Op     string // the operation: "AllReduce", "Group", "NewCommunicator", ...
	Device string // the name of the device that found it
	Rank   int    // of the rank that found it
	Size   int    // the number of ranks
	Ranks  []int  // the ranks that are missing, differ, or have left
	Detail string // what each has done
	Err    error  // the class
}

// Error is "device: CALL on DEVICE, rank RANK of SIZE: CLASS: DETAIL".
func (e *CollectiveError) Error() string {
	return fmt.Sprintf("device: %s on %s, rank %d of %d: %v: %s", e.Op, e.Device, e.Rank, e.Size, e.Err, e.Detail)
}

// Unwrap returns the class.
func (e *CollectiveError) Unwrap() error { return e.Err }
