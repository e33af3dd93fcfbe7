// Package placement decides which memory of a stream serves a request: which free piece, split where; what a freed piece
// merges with; which address an expandable segment grows at; and what could go back to the driver. It is PyTorch's policy,
// to the byte, and nothing else: no lock, no driver, no context, no statistics. An [Arena] is the memory of one stream as
// plain data; whoever calls it has it alone, and counts what its methods return.
//
//	rules              sizes of blocks and segments, which follow from the options
//	chunk, segment     pieces of memory, and what the driver gave
//	tree, index        sets of pieces by size and address
//	arena, lists       the segments of one stream, and what is not in use of them, by pool
//	fit                a request finds a piece, and gets its front
//	free               a piece is given back, and merges
//	expand             segments that grow and shrink
//	release            what may go back to the driver
//	check              what must hold
//
// A request, with what its caller does about locks and statistics left out:
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
