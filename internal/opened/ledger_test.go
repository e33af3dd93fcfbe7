package opened

import (
	"testing"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// TestNothingIsRecordedBeforeWatch: production code makes no ledgers, and its calls allocate
// nothing.
func TestNothingIsRecordedBeforeWatch(t *testing.T) {
	l := New("device", 1)
	if l != nil {
		t.Fatal("a ledger before Watch")
	}
	var handle int
	if n := testing.AllocsPerRun(100, func() {
		l.Add(Event, unsafe.Pointer(&handle))
		l.Remove(unsafe.Pointer(&handle))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	l.Close(false)
	if left := Take(0); left != nil {
		t.Errorf("left: %v", left)
	}
}

// TestLedgerWithManyHandles: handles are closed in another order than opened, some of them twice or
// after Close.
func TestLedgerWithManyHandles(t *testing.T) {
	if race.Enabled {
		t.Skip("race builds record nothing")
	}
	Watch()
	l := New("device", 2)
	handles := make([]*[64]byte, 1000)
	for i := range handles {
		handles[i] = new([64]byte)
		l.Add(Event, unsafe.Pointer(handles[i]))
	}
	for i := 0; i < len(handles); i += 2 {
		l.Remove(unsafe.Pointer(handles[i]))
		l.Remove(unsafe.Pointer(handles[i]))
	}
	l.Close(false)
	l.Add(Event, unsafe.Pointer(handles[0]))
	l.Remove(unsafe.Pointer(handles[1]))
	if left := Take(2); len(left) != len(handles)/2 {
		t.Errorf("%d are left", len(left))
	}
	if left := Take(2); left != nil {
		t.Errorf("taken twice: %v", left)
	}
	l = New("device", 3)
	if n := testing.AllocsPerRun(100, func() {
		l.Add(Event, unsafe.Pointer(handles[0]))
		l.Remove(unsafe.Pointer(handles[0]))
	}); n != 0 {
		t.Errorf("%v allocations for a handle that comes and goes", n)
	}
	Excuse(3)
	l.Add(Event, unsafe.Pointer(handles[0]))
	l.Close(false)
	if left := Take(3); left != nil {
		t.Errorf("left of an excused device: %v", left)
	}
}
