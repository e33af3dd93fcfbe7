// Package diff compares the memory of two runs: by category, module and line at the moment of the
// most allocated memory, and by the peak of each step.
//
//	diffs, err := diff.Read(diff.Options{}, diff.File{Name: "before", Reader: before},
//		diff.File{Name: "after", Reader: after})
//	for _, d := range diffs { // one for each device or rank
//		for _, row := range d.Peaks {
//			fmt.Println(row.Name, row.After.Bytes-row.Before.Bytes)
//		}
//	}
//	err = diff.Write(page, "before and after", diffs...)
//
// [Read] takes two files, of one kind or of two: recordings of trace/record, snapshots of
// torch.cuda.memory._dump_snapshot, profiles of steps as trace/ranks reads them, and heap profiles
// of trace/heap. The command "cistern diff" prints the result, and [Write] makes a page of it.
//
// # Figures
//
// A file is reduced to its peaks, and to the holders of the memory at the moment of the most
// allocated memory:
//
//   - a recording or snapshot: as on the page of trace/report; a device is compared with the device
//     at the same position in the other file
//   - profiles of steps: the step with the highest peak, for each rank; without lines
//   - a heap profile: the peak, or the memory in use if the profile has no peak, without that of
//     graphs, or the total of allocations if it has neither; without steps
//
// Modules are paths. Lines are the innermost call of the program's own code. A dimension that one
// of the files lacks is not compared, and [Dimension.Missing] has the reason. Steps are compared by
// their numbers. Steps in one file alone are counted in the notes, because a longer run does not
// use more memory.
//
// A line that is in one file only is matched with a line of the other file if both are in the same
// function and source file and no other unmatched line is: code above it has then moved it.
//
// # Untrusted files
//
// Figures are checked, and [Options] bound the cost of each file.
package diff
