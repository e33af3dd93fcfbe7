package device

import (
	"errors"
	"fmt"
)

// Classes of errors that end a communicator, for use with errors.Is.
var (
	// ErrTimeout: other ranks did not call the operation in time.
	ErrTimeout = errors.New("timed out")
	// ErrMismatch: ranks called different operations, or the same one with different counts, types,
	// reductions or roots.
	ErrMismatch = errors.New("ranks don't match")
	// ErrAborted: a rank has aborted or closed its communicator, or the library has lost the rank.
	ErrAborted = errors.New("aborted")
)

// CollectiveError is the failure that ended a communicator. It is the same on every rank of a
// process.
type CollectiveError struct {
	Op     string // the operation: "AllReduce", "Group", "NewCommunicator", ...
	Device string // the name of the device that found the failure
	Rank   int    // the rank that found the failure
	Size   int    // the number of ranks
	Ranks  []int  // the ranks that are missing, differ, or have left
	Detail string // what each rank has done
	Err    error  // the class
}

// Error returns "device: CALL on DEVICE, rank RANK of SIZE: CLASS: DETAIL".
func (e *CollectiveError) Error() string {
	return fmt.Sprintf("device: %s on %s, rank %d of %d: %v: %s", e.Op, e.Device, e.Rank, e.Size, e.Err, e.Detail)
}

// Unwrap returns the class.
func (e *CollectiveError) Unwrap() error { return e.Err }
