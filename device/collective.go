package device

import (
	"context"
	"time"
)

// Collectives is implemented by devices that exchange data with other devices of their backend, in
// this process or in another one (NCCL).
//
// All ranks create a [Communicator] with the same id: one rank calls NewCommunicatorID and sends
// the id to the others. Package device/rendezvous does that between processes.
type Collectives interface {
	// NewCommunicatorID returns a new id for all ranks of one communicator (ncclGetUniqueId). The
	// id is not a secret, but any holder of it can join.
	NewCommunicatorID() (CommunicatorID, error)
	// NewCommunicator creates rank rank of a communicator of size ranks on this device
	// (ncclCommInitRank). It waits until all ranks have called it, each from its own goroutine or
	// process, or until ctx ends: then its error wraps [ErrTimeout] and ctx's error, and names the
	// missing ranks. If the rank has joined already, the error wraps [ErrInvalid]. If the ranks
	// disagree on the size, each of them gets an error that wraps [ErrMismatch]. A device may have
	// any number of communicators.
	NewCommunicator(ctx context.Context, id CommunicatorID, rank, size int, opts CommunicatorOptions) (Communicator, error)
}

// CommunicatorID identifies a communicator to all of its ranks (ncclUniqueId). Only the backend
// interprets the bytes.
type CommunicatorID [128]byte

// CommunicatorOptions are the options of a new communicator.
type CommunicatorOptions struct {
	// Timeout limits how long an operation that has begun may wait for the other ranks. After that
	// the communicator fails with an error that wraps [ErrTimeout]. 0 means
	// [DefaultCollectiveTimeout].
	Timeout time.Duration
	// Overlapped tunes the communicator for operations that run beside kernels which fill the
	// device, as in training. NCCL's blocks then have no clusters (cgaClusterSize 0 of
	// ncclConfig_t), so that they begin earlier; by default NCCL uses clusters on GPUs of compute
	// capability 9.0. Large operations without other work beside them take up to a tenth longer.
	// NCCL_CGA_CLUSTER_SIZE takes precedence if it is set. The host device ignores Overlapped. All
	// ranks must agree on it.
	Overlapped bool
}

// DefaultCollectiveTimeout is the timeout of operations by default, the same as PyTorch's for NCCL.
const DefaultCollectiveTimeout = 10 * time.Minute

// Communicator is one rank of a group that exchanges data (ncclComm_t). It must be closed.
//
// Operations are queued on a stream of the communicator's device, return at once, and run in the
// stream's order. All ranks must queue the same operations in the same order, with the same counts
// and types. A rank's operation is complete when the data that it reads may be written again and
// its results are written. Whether the other ranks have then completed theirs depends on the
// operation: only [Communicator.Barrier] promises anything.
//
// Counts are in elements. As for kernels, ranges must be live memory of the device; addresses must
// be multiples of the element's size. If an operation reads and writes, its ranges either coincide
// as the method describes (in place) or don't overlap. With a count of 0 nothing is moved and the
// addresses are ignored.
//
// Operations of one communicator on several streams are ordered by events, like other work. Each
// rank must make its calls from one goroutine, or in an order that the program enforces, because
// ranks that call in different orders don't match. Communicators are independent of each other, but
// if one stream has operations of several communicators, all ranks must queue these in the same
// order, too. Operations can be captured in graphs ([GraphCapturer]) if all ranks replay them
// alike.
//
// # Failure
//
// For wrong arguments the call returns an error that wraps [ErrInvalid] and queues nothing. A later
// failure ends the communicator on all ranks: an operation that another rank does not match
// ([ErrMismatch]), one that waits for longer than the timeout ([ErrTimeout]), a rank that has
// aborted or closed while others need it ([ErrAborted]). From then on AsyncError and every call
// that queues return a [*CollectiveError] that names the operation and the ranks. Pending
// operations end without waiting, and their results are undefined. Streams and devices stay usable,
// so a caller must check AsyncError after the stream is done and before it uses a result.
type Communicator interface {
	// Device returns the communicator's device.
	Device() Device
	// ID returns the id with which all ranks created the communicator. It is the same on every rank
	// and differs between communicators.
	ID() CommunicatorID
	// Rank returns this rank, counted from 0.
	Rank() int
	// Size returns the number of ranks.
	Size() int

	// AllReduce reduces count elements at src over all ranks and writes the result to dst on every
	// rank, bit-identical on all of them (ncclAllReduce). In place, dst is src.
	AllReduce(s Stream, dst, src Ptr, count int64, t DataType, op ReduceOp) error
	// Broadcast copies count elements at the root's src to dst on every rank (ncclBroadcast). The
	// src of the other ranks is ignored. In place, dst is src.
	Broadcast(s Stream, dst, src Ptr, count int64, t DataType, root int) error
	// AllGather writes the count elements at each rank's src to dst, in the order of the ranks
	// (ncclAllGather). dst has count times Size elements. In place, src is this rank's part of dst.
	AllGather(s Stream, dst, src Ptr, count int64, t DataType) error
	// ReduceScatter reduces count times Size elements at src over all ranks and writes this rank's
	// part of the result, count elements from element rank times count on, to dst
	// (ncclReduceScatter). In place, dst is this rank's part of src.
	ReduceScatter(s Stream, dst, src Ptr, count int64, t DataType, op ReduceOp) error
	// Send sends count elements at src to rank peer, which calls Recv with this rank and the same
	// count and type (ncclSend). Sends to one peer are received in the order in which they were
	// queued.
	Send(s Stream, src Ptr, count int64, t DataType, peer int) error
	// Recv receives count elements that rank peer sends into dst (ncclRecv).
	Recv(s Stream, dst Ptr, count int64, t DataType, peer int) error
	// Barrier completes when all ranks have begun theirs.
	Barrier(s Stream) error

	// GroupStart begins a group (ncclGroupStart). The operations queued until GroupEnd form one
	// operation in which none waits for the one before it, such as the sends and receives of ranks
	// that exchange data. All must be on one stream. While a group is open no other goroutine may
	// use the communicator.
	GroupStart() error
	// GroupEnd queues the group (ncclGroupEnd). If a call in the group was refused, GroupEnd
	// returns that call's error, too, and queues nothing.
	GroupEnd() error

	// AsyncError returns the error that ended the communicator, or nil (ncclCommGetAsyncError). It
	// never waits.
	AsyncError() error
	// Abort ends the communicator on all ranks without waiting (ncclCommAbort). Pending operations
	// end with an error that wraps [ErrAborted]. The communicator must still be closed.
	Abort() error
	// Close waits until the queued operations have ended, which the timeout bounds, and leaves the
	// communicator (ncclCommFinalize, ncclCommDestroy). It is idempotent; the first Close returns
	// AsyncError. Calls after it return an error that wraps [ErrClosed], except Close, Abort,
	// AsyncError, Device, ID, Rank and Size. Graphs that contain the communicator's operations must
	// not be replayed after Close.
	Close() error
}
