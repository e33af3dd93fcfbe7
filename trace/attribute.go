package trace

import "go.opentelemetry.io/otel/attribute"

// Keys of the attributes of spans and metrics. Sizes are bytes, times are seconds. There are no
// addresses: a block is identified by its serial, which is never reused.
const (
	// KeyDevice is the device's name: "host", "cuda:0".
	KeyDevice = attribute.Key("cistern.device.name")
	// KeyStream is the stream of a block or a copy.
	KeyStream = attribute.Key("cistern.stream.id")
	// KeyPool is "small" or "large".
	KeyPool = attribute.Key("cistern.pool.name")
	// KeySerial is the serial of a block.
	KeySerial = attribute.Key("cistern.block.serial")
	// KeyBytes is the size of a block or segment.
	KeyBytes = attribute.Key("cistern.block.size")
	// KeyRequested is the size that the caller asked for.
	KeyRequested = attribute.Key("cistern.block.requested_size")
	// KeyHit is whether the cache served the request without the driver.
	KeyHit = attribute.Key("cistern.cache.hit")
	// KeyResult is "hit", "miss" or "oom".
	KeyResult = attribute.Key("cistern.allocation.result")
	// KeyState is "allocated", "pending" and others; see Watch.
	KeyState = attribute.Key("cistern.memory.state")
	// KeyOperation is "h2d", "d2h", "d2d", "fill", "batch" or "launch".
	KeyOperation = attribute.Key("cistern.transfer.operation")
	// KeyDirection is the direction of a copy: "h2d", "d2h", "d2d".
	KeyDirection = attribute.Key("cistern.transfer.direction")
	// KeyCopyBytes is the size of a copy.
	KeyCopyBytes = attribute.Key("cistern.transfer.size")
	// KeyCopyQueued is the time that a copy waited for the stream's earlier work.
	KeyCopyQueued = attribute.Key("cistern.transfer.queued")
	// KeyBandwidth is bytes a second while the copy ran.
	KeyBandwidth = attribute.Key("cistern.transfer.bandwidth")
	// KeyPinnedBytes is the size of a pinned allocation.
	KeyPinnedBytes = attribute.Key("cistern.pinned.size")
	// KeyWaited is the time that a loader's Next waited for data.
	KeyWaited = attribute.Key("cistern.loader.waited")

	// KeyCollective is the operation: "all_reduce", "group".
	KeyCollective = attribute.Key("cistern.collective.operation")
	// KeyCollectiveSize is the operation's bytes, as NCCL's tests count them.
	KeyCollectiveSize = attribute.Key("cistern.collective.size")
	// KeyCollectiveType is the type of the elements: "float32".
	KeyCollectiveType = attribute.Key("cistern.collective.dtype")
	// KeyCollectiveCalls is the number of calls in a group.
	KeyCollectiveCalls = attribute.Key("cistern.collective.calls")
	// KeyCollectiveNumber counts the communicator's operations, the same on all ranks.
	KeyCollectiveNumber = attribute.Key("cistern.collective.number")
	// KeyCollectiveQueued is the time that it waited for the stream's earlier work.
	KeyCollectiveQueued = attribute.Key("cistern.collective.queued")
	// KeyCollectiveBandwidth is bytes a second: the size by the time.
	KeyCollectiveBandwidth = attribute.Key("cistern.collective.bandwidth")
	// KeyCollectiveBusBandwidth is bytes a second over each rank's link.
	KeyCollectiveBusBandwidth = attribute.Key("cistern.collective.bus_bandwidth")
	// KeyRank is the rank in the training, from 0 on.
	KeyRank = attribute.Key("cistern.rank")
	// KeyWorldSize is the number of ranks.
	KeyWorldSize = attribute.Key("cistern.world_size")

	// KeyPCIAddress is the address of a GPU: "0000:18:00.0".
	KeyPCIAddress = attribute.Key("cistern.device.pci_address")
	// KeyModule is that of memcache.Label: "encoder.0.linear".
	KeyModule = attribute.Key("cistern.module.name")
	// KeyCategory is that of memcache.Label: "activation", "optimizer_state".
	KeyCategory = attribute.Key("cistern.memory.category")

	// KeyMemoryAllocated is bytes handed out when memory ran out.
	KeyMemoryAllocated = attribute.Key("cistern.memory.allocated")
	// KeyMemoryReserved is bytes held from the driver when memory ran out.
	KeyMemoryReserved = attribute.Key("cistern.memory.reserved")
	// KeyMemoryFree is the driver's free bytes.
	KeyMemoryFree = attribute.Key("cistern.memory.free")
	// KeyMemoryTotal is the device's bytes.
	KeyMemoryTotal = attribute.Key("cistern.memory.total")
	// KeyMemoryLimit is the cache's limit, if it has one.
	KeyMemoryLimit = attribute.Key("cistern.memory.limit")

	// KeyStep is the caller's number of the step.
	KeyStep = attribute.Key("cistern.step.number")
	// KeyStepDetail is the Detail of the step's spans.
	KeyStepDetail = attribute.Key("cistern.step.detail")
	// KeyStepStart is bytes allocated when the step started.
	KeyStepStart = attribute.Key("cistern.step.allocated.start")
	// KeyStepEnd is bytes allocated when it ended.
	KeyStepEnd = attribute.Key("cistern.step.allocated.end")
	// KeyStepPeak is the most bytes allocated in between.
	KeyStepPeak = attribute.Key("cistern.step.allocated.peak")
	// KeyStepRequested is the same before rounding.
	KeyStepRequested = attribute.Key("cistern.step.requested.peak")
	// KeyStepReserved is the most bytes held from the driver.
	KeyStepReserved = attribute.Key("cistern.step.reserved.peak")
	// KeyStepAllocations counts the requests served.
	KeyStepAllocations = attribute.Key("cistern.step.allocations")
	// KeyStepHits counts the requests served by the cache.
	KeyStepHits = attribute.Key("cistern.step.hits")
	// KeyStepMisses counts the requests that needed the driver or failed.
	KeyStepMisses = attribute.Key("cistern.step.misses")
	// KeyStepRetries counts the driver allocations tried again after a flush.
	KeyStepRetries = attribute.Key("cistern.step.retries")
	// KeyStepOOMs counts the requests that failed.
	KeyStepOOMs = attribute.Key("cistern.step.out_of_memory")
	// KeyStepOwnPeak is the most bytes in the step's own blocks.
	KeyStepOwnPeak = attribute.Key("cistern.step.own.peak")
	// KeyStepOwnLive is bytes of own blocks not freed when the step ended.
	KeyStepOwnLive = attribute.Key("cistern.step.own.live")
	// KeyStepOwnAllocations counts the own blocks allocated.
	KeyStepOwnAllocations = attribute.Key("cistern.step.own.allocations")
	// KeyStepH2D is bytes copied to the device.
	KeyStepH2D = attribute.Key("cistern.step.h2d.size")
	// KeyStepD2H is bytes copied to the host.
	KeyStepD2H = attribute.Key("cistern.step.d2h.size")
	// KeyStepCollectives counts the communicator's operations, a group as one.
	KeyStepCollectives = attribute.Key("cistern.step.collectives")
	// KeyStepCollectiveTime is their time on their streams, with the wait for other ranks.
	KeyStepCollectiveTime = attribute.Key("cistern.step.collective.time")
	// KeyStepReplays counts the replays of graphs. The next three keys are of the graph that holds
	// the most.
	KeyStepReplays = attribute.Key("cistern.step.replays")
	// KeyStepReplayHeld is the most bytes that the graph's operations hold.
	KeyStepReplayHeld = attribute.Key("cistern.step.replay.held")
	// KeyStepReplayPoolGraphs is the number of graphs that share its pool.
	KeyStepReplayPoolGraphs = attribute.Key("cistern.step.replay.pool.graphs")
	// KeyStepReplayPoolReserved is bytes of the pool's segments.
	KeyStepReplayPoolReserved = attribute.Key("cistern.step.replay.pool.reserved")
	// KeyStepReplayOperations is a list of the kinds of collective operations in the graphs. The
	// next two lists are in the same order.
	KeyStepReplayOperations = attribute.Key("cistern.step.replay.collective.operations")
	// KeyStepReplayCollectives is the number of operations of each kind, over all replays.
	KeyStepReplayCollectives = attribute.Key("cistern.step.replay.collectives")
	// KeyStepReplaySizes is the bytes of each kind, over all replays.
	KeyStepReplaySizes = attribute.Key("cistern.step.replay.collective.sizes")
	// KeyStepDeviceTime is the time on the compute stream from the step's first to its last work.
	KeyStepDeviceTime = attribute.Key("cistern.step.device.time")
	// KeyStepDeviceBusy is the part of that in which the stream had work.
	KeyStepDeviceBusy = attribute.Key("cistern.step.device.busy")
)

// TagPrefix begins the key of each tag of a [memcache.Label]: "cistern.tag.experiment".
const TagPrefix = "cistern.tag."
