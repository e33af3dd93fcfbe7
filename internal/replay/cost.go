package replay

import (
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/budget"
)

// The work of a replay, in units of package budget. A list that a call of the cache or the device
// walks is charged by its length.
const (
	machineWork = 2500 // of a cache and its device
	stepWork    = 30   // of a call
	driverWork  = 60   // of a call of the driver
	oomWork     = 500
	blockWork   = 10 // of a block in a snapshot
	entryWork   = 10 // of an entry in the books
)

// The memory of a replay, in bytes.
const (
	handOutMemory = 48  // of each block that was ever in use
	liveMemory    = 500 // of each block at the moment with the most
	streamMemory  = 22000
	poolMemory    = 25000
)

// cost charges a replay to a budget. It keeps the first error.
type cost struct {
	budget *budget.Budget
	spans  int // pieces of memory from the driver
	// statistics are summed over them
	streams int
	private int   // pools, over which they are summed too
	memory  int64 // bytes charged
	err     error // once the budget is exceeded
	over    bool  // at the end: releases were charged with the allocations
}

// work charges n units.
func (c *cost) work(n int) {
	if c.over {
		return
	}
	if err := c.budget.Work(int64(n)); err != nil && c.err == nil {
		c.err = err
	}
}

// hold charges n bytes until the end of the replay.
func (c *cost) hold(n int64) error {
	c.memory += n
	return c.budget.Memory(n)
}

// end refunds the memory.
func (c *cost) end() { _ = c.budget.Memory(-c.memory) }

// step charges a call.
func (c *cost) step() { c.work(stepWork) }

// add charges a private pool.
func (c *cost) add() error {
	c.private++
	c.work(500)
	return c.hold(poolMemory)
}

// sums charges for a sum over all streams and pools, such as statistics.
func (c *cost) sums() { c.work(20*c.streams + 10*c.private) }

// driver charges for a driver call, whose cost grows with the device's sorted table of all memory.
// Calls that allocate fail once the budget is exceeded.
func (c *cost) driver(op null.Op) error {
	c.work(driverWork + c.spans/20)
	c.sums()
	if op == null.OpAlloc || op == null.OpReserve || op == null.OpMap {
		return c.err
	}
	return nil
}

// count counts the memory from the driver.
func (c *cost) count(op null.Op) {
	switch op {
	case null.OpAlloc, null.OpMap:
		c.spans++
	case null.OpFree, null.OpUnmap:
		c.spans--
	}
}

// walk charges for a flush or a collection, which visits all memory.
func (c *cost) walk(live int) { c.work(c.spans + live + 20*c.streams + c.private*(10+c.spans/4)) }
