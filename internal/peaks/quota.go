package peaks

// The arithmetic of quotas, independent of locks and of where shards keep their counts. memcache,
// whose gauges are in its own shards, uses it too.

// Take raises a quota towards need by the unused quota of another shard, and returns the missing
// amount. Both shards are locked.
func Take(quota *int64, need int64, other *int64, used int64) (missing int64) {
	if missing = need - *quota; missing <= 0 {
		return 0
	}
	n := min(missing, *other-used)
	*quota += n
	*other -= n
	return missing - n
}

// Cover raises one shard's quota to n more than its use: by the unused quotas of the other shards,
// in order, and, if these do not suffice, by raising the peak to exactly the sum of all uses plus
// n. It reports whether the peak rose. of returns a shard's use and its quota. All shards are
// locked.
func Cover[S comparable](peak *int64, mine S, all []S, n int64, of func(S) (used int64, quota *int64)) (rose bool) {
	// While another shard has unused quota, the true sum is below the peak, and the peak must not
	// rise.
	used, quota := of(mine)
	need := used + n
	missing := need - *quota
	for _, o := range all {
		if missing <= 0 {
			return false
		}
		if o != mine {
			used, other := of(o)
			missing = Take(quota, need, other, used)
		}
	}
	if missing > 0 {
		*quota += missing
		*peak += missing
	}
	return missing > 0
}
