// Package placement decides which memory of a stream serves a request: which free chunk, where to
// split it, how freed chunks merge, where an expandable segment grows, and what can be returned to
// the driver. It implements only PyTorch's policy, to the byte, without locks, driver calls,
// contexts or statistics. An [Arena] is the memory of one stream as plain data. Its caller needs
// exclusive access, and counts the changes that its methods return.
//
//	rules              sizes of blocks and segments, derived from the options
//	chunk, segment     pieces of memory, and memory from the driver
//	tree, index        sets of chunks by size and address
//	arena, lists       the segments of one stream, and their free chunks by pool
//	fit                find a chunk for a request, and allocate its front
//	free               free and merge a chunk
//	expand             segments that grow and shrink
//	release, excess    select memory to return to the driver
//	check              the invariants
//
// A request, without the locks and statistics of the caller:
//
//	want := placement.Want{Kind: placement.KindFor(bytes), Bytes: rules.RoundSize(bytes)}
//	m := arena.Find(&want)
//	if m == nil {
//		m = arena.NewSegment(driverAlloc(rules.SegmentSize(want.Bytes)), …)
//	}
//	fit := arena.Fit(m, &want)     // what will change
//	m = arena.HandOut(m, &want, fit, now)
//	…
//	freed := m.Freed()             // what will change
//	arena.Free(m, now)
package placement
