package device

import (
	"context"
	"time"
)

// Collectives is implemented by devices that exchange data with other devices of their backend, in this process or another one (NCCL).
//
// Each of size ranks makes a [Communicator] with the same id, which one of them got of NewCommunicatorID and handed to the others;
// package device/rendezvous does that between processes.
type Collectives interface {
	// NewCommunicatorID is a new id for one communicator, on all of its ranks (ncclGetUniqueId). It
	// is not secret, but its owners can join.
	NewCommunicatorID() (CommunicatorID, error)
	// NewCommunicator makes this device rank rank of size (ncclCommInitRank). It waits until all ranks have come, each in a goroutine or
	// process of its own, or until ctx ends: then its error wraps [ErrTimeout] and ctx's, and names the ranks that are missing. A rank that is there
	// already is an error that wraps [ErrInvalid]; ranks that don't agree on the size get one that wraps [ErrMismatch], each of them.
	// The device may have any number of communicators.
	NewCommunicator(ctx context.Context, id CommunicatorID, rank, size int, opts CommunicatorOptions) (Communicator, error)
}

// CommunicatorID says which communicator a rank is of (ncclUniqueId). Its bytes mean something to the backend alone.
type CommunicatorID [128]byte

// CommunicatorOptions are the options of a new communicator.
type CommunicatorOptions struct {
	// Timeout is how long an operation may wait for the other ranks once it has begun, before the communicator fails with an error that
	// wraps [ErrTimeout]. 0: [DefaultCollectiveTimeout].
	Timeout time.Duration
	// Overlapped is for operations beside kernels that fill the device, as a training's are: NCCL's blocks then have no clusters (cgaClusterSize 0 of ncclConfig_t), where it would choose
	// them by itself, on GPUs of compute capability 9.0, and begin earlier. Large operations that nothing runs beside take up to a tenth longer then. NCCL_CGA_CLUSTER_SIZE, if it is
	// set, decides instead; on the host device there is nothing to decide. All ranks choose alike.
	Overlapped bool
}

// DefaultCollectiveTimeout is as long as PyTorch lets NCCL wait.
const DefaultCollectiveTimeout = 10 * time.Minute

// Communicator is one rank of several that exchange data (ncclComm_t). It must be closed.
//
// Operations are queued on a stream of the communicator's device, return at once, and run in the stream's order. All ranks queue the same
// operations in the same order, with the same counts and types; that of a rank ends when the data that it reads may be written again and its results are
// there. Which ranks else have ended then depends on the operation: only [Communicator.Barrier] promises anything. Counts are in elements. Ranges must be live memory of the device, as those of a kernel must, and
// their addresses multiples of the element's size. Where an operation reads and writes, the ranges are the same place, as each method says (in
// place), or don't overlap. A count of 0 moves nothing, and its addresses are not looked at.
//
// Operations of one communicator that are queued on several streams are ordered by events, as the streams' other work is. Each rank's calls are
// made by one goroutine, or in an order of the program's: ranks that call in different orders don't match. Several communicators are independent; where a
// stream has operations of several, all ranks need the same order of these, too. Operations can be captured in graphs ([GraphCapturer]), if all ranks replay alike.
//
// # Failure
//
// Wrong arguments are an error of the call, which wraps [ErrInvalid], and nothing is queued. What
// goes wrong later ends the communicator on all ranks: an operation that another rank does not
// match ([ErrMismatch]), one that waits for longer than the timeout ([ErrTimeout]), a rank that has
// aborted or closed while others need it ([ErrAborted]). From then on AsyncError and every call
// that queues return a [*CollectiveError] which names operation and ranks; what is queued ends
// without waiting, and leaves its results undefined. Streams and devices stay usable, so readers of
// a result ask AsyncError once the stream is done.
type Communicator interface {
	// Device is the communicator's device.
	Device() Device
	// ID is what all ranks have made it with: the same on each, and another one for each communicator.
	ID() CommunicatorID
	// Rank is this rank, from 0 on.
	Rank() int
	// Size is the number of ranks.
	Size() int

	// AllReduce puts the reduction of all ranks' count elements at src to dst, on every rank, with the same bits on all
	// (ncclAllReduce). In place dst is src.
	AllReduce(s Stream, dst, src Ptr, count int64, t DataType, op ReduceOp) error
	// Broadcast puts root's count elements at src to dst, on every rank (ncclBroadcast). Other ranks' src is not looked at. In place dst is
	// src.
	Broadcast(s Stream, dst, src Ptr, count int64, t DataType, root int) error
	// AllGather puts count elements of each rank, from src, one rank's behind the other's to dst, which has room for count times Size
	// (ncclAllGather). In place src is this rank's part of dst.
	AllGather(s Stream, dst, src Ptr, count int64, t DataType) error
	// ReduceScatter reduces count times Size elements at src, and puts the part of this rank, count elements from rank times count on, to dst
	// (ncclReduceScatter). In place dst is this rank's part of src.
	ReduceScatter(s Stream, dst, src Ptr, count int64, t DataType, op ReduceOp) error
	// Send sends count elements at src to rank peer, which calls Recv with this rank, count and type (ncclSend). Sends to one peer are received in their order.
	Send(s Stream, src Ptr, count int64, t DataType, peer int) error
	// Recv receives what peer sends (ncclRecv).
	Recv(s Stream, dst Ptr, count int64, t DataType, peer int) error
	// Barrier ends when all ranks have begun theirs.
	Barrier(s Stream) error

	// GroupStart begins a group (ncclGroupStart): what is queued until GroupEnd is one operation, in which none waits for the one before it, such as sends
	// and receives of ranks that exchange data. All are on one stream. Who has a group open has the communicator to itself.
	GroupStart() error
	// GroupEnd queues the group (ncclGroupEnd). If a call in it was refused, GroupEnd returns that error too, and queues nothing.
	GroupEnd() error

	// AsyncError is what has ended the communicator, or nil (ncclCommGetAsyncError). It never waits.
	AsyncError() error
	// Abort ends the communicator on all ranks, without waiting (ncclCommAbort): what waits in it ends, with an error that wraps [ErrAborted]. It must still be closed.
	Abort() error
	// Close waits until what was queued has ended, which the timeout bounds, and leaves
	// (ncclCommFinalize, ncclCommDestroy). It is idempotent; the first Close returns AsyncError.
	// Calls after it return an error that wraps [ErrClosed], except Close, Abort, AsyncError,
	// Device, ID, Rank and Size. A graph with the communicator's operations must not be replayed
	// any more.
	Close() error
}
