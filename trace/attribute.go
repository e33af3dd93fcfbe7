package trace

import "go.opentelemetry.io/otel/attribute"

// Keys of the attributes of spans and metrics. Sizes are bytes, times are seconds. There are no addresses:
// a block is known by its serial, which is never reused.
const (
	KeyDevice      = attribute.Key("cistern.device.name")          // "host", "cuda:0"
	KeyStream      = attribute.Key("cistern.stream.id")            // the stream of a block or a copy
	KeyPool        = attribute.Key("cistern.pool.name")            // "small", "large"
	KeySerial      = attribute.Key("cistern.block.serial")         // number of the hand-out
	KeyBytes       = attribute.Key("cistern.block.size")           // the block's or segment's bytes
	KeyRequested   = attribute.Key("cistern.block.requested_size") // what the caller asked for
	KeyHit         = attribute.Key("cistern.cache.hit")            // served without the driver
	KeyResult      = attribute.Key("cistern.allocation.result")    // "hit", "miss", "oom"
	KeyState       = attribute.Key("cistern.memory.state")         // what memory is doing; see Watch
	KeyOperation   = attribute.Key("cistern.transfer.operation")   // "h2d", "d2h", "d2d", "fill", "batch", "launch"
	KeyDirection   = attribute.Key("cistern.transfer.direction")   // of a copy: "h2d", "d2h", "d2d"
	KeyCopyBytes   = attribute.Key("cistern.transfer.size")        // bytes of the copy
	KeyCopyQueued  = attribute.Key("cistern.transfer.queued")      // seconds behind the stream's earlier work
	KeyBandwidth   = attribute.Key("cistern.transfer.bandwidth")   // bytes a second while the copy ran
	KeyPinnedBytes = attribute.Key("cistern.pinned.size")          // bytes of a pinned allocation
	KeyWaited      = attribute.Key("cistern.loader.waited")        // time that a batch waited for data

	KeyCollective             = attribute.Key("cistern.collective.operation")     // "all_reduce", "group"
	KeyCollectiveSize         = attribute.Key("cistern.collective.size")          // bytes, as NCCL's tests count them
	KeyCollectiveType         = attribute.Key("cistern.collective.dtype")         // of the elements: "float32"
	KeyCollectiveCalls        = attribute.Key("cistern.collective.calls")         // in a group
	KeyCollectiveNumber       = attribute.Key("cistern.collective.number")        // among the communicator's, the same on all ranks
	KeyCollectiveQueued       = attribute.Key("cistern.collective.queued")        // seconds behind the stream's earlier work
	KeyCollectiveBandwidth    = attribute.Key("cistern.collective.bandwidth")     // bytes a second: the size by the time
	KeyCollectiveBusBandwidth = attribute.Key("cistern.collective.bus_bandwidth") // what each rank's link has carried for that
	KeyRank                   = attribute.Key("cistern.rank")                     // of the training's ranks, from 0 on
	KeyWorldSize              = attribute.Key("cistern.world_size")               // the number of ranks

	KeyPCIAddress = attribute.Key("cistern.device.pci_address") // of a GPU: "0000:18:00.0"
	KeyModule     = attribute.Key("cistern.module.name")        // of memcache.Label: "encoder.0.linear"
	KeyCategory   = attribute.Key("cistern.memory.category")    // of memcache.Label: "activation", "optimizer_state"

	KeyMemoryAllocated = attribute.Key("cistern.memory.allocated") // bytes handed out, when memory ran out
	KeyMemoryReserved  = attribute.Key("cistern.memory.reserved")  // held from the driver
	KeyMemoryFree      = attribute.Key("cistern.memory.free")      // the driver's
	KeyMemoryTotal     = attribute.Key("cistern.memory.total")     // the device's
	KeyMemoryLimit     = attribute.Key("cistern.memory.limit")     // the cache's, if it has one

	KeyStep                   = attribute.Key("cistern.step.number")                       // the caller's number
	KeyStepDetail             = attribute.Key("cistern.step.detail")                       // the Detail of its spans
	KeyStepStart              = attribute.Key("cistern.step.allocated.start")              // bytes allocated when it started
	KeyStepEnd                = attribute.Key("cistern.step.allocated.end")                // bytes allocated when it ended
	KeyStepPeak               = attribute.Key("cistern.step.allocated.peak")               // the most in between
	KeyStepRequested          = attribute.Key("cistern.step.requested.peak")               // the same before rounding
	KeyStepReserved           = attribute.Key("cistern.step.reserved.peak")                // the most bytes held from the driver
	KeyStepAllocations        = attribute.Key("cistern.step.allocations")                  // requests served
	KeyStepHits               = attribute.Key("cistern.step.hits")                         // of these, by the cache
	KeyStepMisses             = attribute.Key("cistern.step.misses")                       // by the driver, or failed
	KeyStepRetries            = attribute.Key("cistern.step.retries")                      // driver allocations repeated after a flush
	KeyStepOOMs               = attribute.Key("cistern.step.out_of_memory")                // requests that failed
	KeyStepOwnPeak            = attribute.Key("cistern.step.own.peak")                     // the most bytes in the step's own blocks
	KeyStepOwnLive            = attribute.Key("cistern.step.own.live")                     // bytes of own blocks not freed when it ended
	KeyStepOwnAllocations     = attribute.Key("cistern.step.own.allocations")              // own blocks handed out
	KeyStepH2D                = attribute.Key("cistern.step.h2d.size")                     // bytes copied to the device
	KeyStepD2H                = attribute.Key("cistern.step.d2h.size")                     // bytes copied to the host
	KeyStepCollectives        = attribute.Key("cistern.step.collectives")                  // operations of the communicator, a group as one
	KeyStepCollectiveTime     = attribute.Key("cistern.step.collective.time")              // on their streams, with the waiting for other ranks
	KeyStepReplays            = attribute.Key("cistern.step.replays")                      // of graphs; the next three are of the graph that holds the most
	KeyStepReplayHeld         = attribute.Key("cistern.step.replay.held")                  // the most bytes that its operations hold
	KeyStepReplayPoolGraphs   = attribute.Key("cistern.step.replay.pool.graphs")           // how many graphs share its pool
	KeyStepReplayPoolReserved = attribute.Key("cistern.step.replay.pool.reserved")         // bytes of the pool's segments
	KeyStepReplayOperations   = attribute.Key("cistern.step.replay.collective.operations") // kinds of collective operations in the graphs; the next two are theirs
	KeyStepReplayCollectives  = attribute.Key("cistern.step.replay.collectives")           // operations, by the replays
	KeyStepReplaySizes        = attribute.Key("cistern.step.replay.collective.sizes")      // bytes of them together
	KeyStepDeviceTime         = attribute.Key("cistern.step.device.time")                  // on the compute stream, from its first to its last work
	KeyStepDeviceBusy         = attribute.Key("cistern.step.device.busy")                  // of that, in which it had work
)

// TagPrefix is before the key of each pair of a [memcache.Label]: "cistern.tag.experiment".
const TagPrefix = "cistern.tag."
