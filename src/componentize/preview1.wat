;; WASI preview 1 on top of WASI 0.2, for core modules that were built against preview 1: what such a module calls of these
;; functions becomes part of its component, the rest falls away.
;;
;; It allocates nothing and keeps nothing: an adapter that grows the memory takes pages in the middle of what some allocators,
;; Go's among them, hold to be theirs. Where an answer needs room, 16 bytes of the module's memory are borrowed and put back.
;; There are no files: what asks for one gets EBADF (8). Sleeping waits, it does not compute.
;;
;; While the host asks a module for room (`cabi_realloc`), the module may call nobody. A runtime that looks at the clock whenever
;; it is entered, as Go's does, says so before with `piecework_hold(1)`: until `piecework_hold(0)` its clock is this adapter's own,
;; output is dropped and sleep is over at once.
(module
  (import "env" "memory" (memory 0))
  (import "wasi:cli/stdout@0.2.0" "get-stdout" (func $stdout (result i32)))
  (import "wasi:cli/stderr@0.2.0" "get-stderr" (func $stderr (result i32)))
  (import "wasi:cli/exit@0.2.0" "exit" (func $exit (param i32)))
  (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
    (func $write (param i32 i32 i32 i32)))
  (import "wasi:io/streams@0.2.0" "[resource-drop]output-stream" (func $close (param i32)))
  (import "wasi:io/poll@0.2.0" "[method]pollable.block" (func $block (param i32)))
  (import "wasi:io/poll@0.2.0" "[resource-drop]pollable" (func $forget (param i32)))
  (import "wasi:clocks/monotonic-clock@0.2.0" "now" (func $monotonic (result i64)))
  (import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $after (param i64) (result i32)))
  (import "wasi:clocks/wall-clock@0.2.0" "now" (func $wall (param i32)))
  (import "wasi:random/random@0.2.0" "get-random-u64" (func $random (result i64)))

  (global $held (mut i32) (i32.const 0))
  (global $last (mut i64) (i64.const 0))

  (func (export "piecework_hold") (param $on i32)
    (global.set $held (local.get $on)))

  ;; Nanoseconds: 0 is the wall clock, whose answer is seconds (8 bytes) and nanoseconds (4).
  (func $now (param $clock i32) (result i64)
    (local $a i64) (local $b i64) (local $time i64)
    (if (global.get $held)
      (then
        (global.set $last (i64.add (global.get $last) (i64.const 1000)))
        (return (global.get $last))))
    (if (local.get $clock)
      (then
        (global.set $last (call $monotonic))
        (return (global.get $last))))
    (local.set $a (i64.load (i32.const 16)))
    (local.set $b (i64.load (i32.const 24)))
    (call $wall (i32.const 16))
    (local.set $time
      (i64.add (i64.mul (i64.load (i32.const 16)) (i64.const 1000000000)) (i64.load32_u (i32.const 24))))
    (i64.store (i32.const 16) (local.get $a))
    (i64.store (i32.const 24) (local.get $b))
    (local.get $time))

  (func (export "clock_time_get") (param $clock i32) (param $precision i64) (param $to i32) (result i32)
    (i64.store (local.get $to) (call $now (local.get $clock)))
    (i32.const 0))

  (func (export "clock_res_get") (param $clock i32) (param $to i32) (result i32)
    (i64.store (local.get $to) (i64.const 1))
    (i32.const 0))

  (func (export "random_get") (param $to i32) (param $len i32) (result i32)
    (block $done
      (loop $next
        (br_if $done (i32.lt_u (local.get $len) (i32.const 8)))
        (i64.store (local.get $to) (call $random))
        (local.set $to (i32.add (local.get $to) (i32.const 8)))
        (local.set $len (i32.sub (local.get $len) (i32.const 8)))
        (br $next)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $len)))
        (i32.store8 (local.get $to) (i32.wrap_i64 (call $random)))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (local.set $len (i32.sub (local.get $len) (i32.const 1)))
        (br $next)))
    (i32.const 0))

  ;; One piece; a call takes 4096 bytes at most. Whether it arrived is not asked: there is nobody else to tell.
  (func $put (param $stream i32) (param $from i32) (param $len i32)
    (local $part i32) (local $a i64) (local $b i64)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $len)))
        (local.set $part
          (select (local.get $len) (i32.const 4096) (i32.lt_u (local.get $len) (i32.const 4096))))
        (local.set $a (i64.load (i32.const 16)))
        (local.set $b (i64.load (i32.const 24)))
        (call $write (local.get $stream) (local.get $from) (local.get $part) (i32.const 16))
        (i64.store (i32.const 16) (local.get $a))
        (i64.store (i32.const 24) (local.get $b))
        (local.set $from (i32.add (local.get $from) (local.get $part)))
        (local.set $len (i32.sub (local.get $len) (local.get $part)))
        (br $next))))

  (func (export "fd_write")
    (param $fd i32) (param $pieces i32) (param $count i32) (param $written i32) (result i32)
    (local $stream i32) (local $len i32) (local $all i32)
    (if (i32.or (i32.lt_u (local.get $fd) (i32.const 1)) (i32.gt_u (local.get $fd) (i32.const 2)))
      (then (return (i32.const 8))))
    (if (i32.eqz (global.get $held))
      (then
        (if (i32.eq (local.get $fd) (i32.const 1))
          (then (local.set $stream (call $stdout)))
          (else (local.set $stream (call $stderr))))))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $len (i32.load offset=4 (local.get $pieces)))
        (if (i32.eqz (global.get $held))
          (then (call $put (local.get $stream) (i32.load (local.get $pieces)) (local.get $len))))
        (local.set $all (i32.add (local.get $all) (local.get $len)))
        (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (if (i32.eqz (global.get $held)) (then (call $close (local.get $stream))))
    (i32.store (local.get $written) (local.get $all))
    (i32.const 0))

  ;; A character device that may do all, for the three that exist.
  (func (export "fd_fdstat_get") (param $fd i32) (param $to i32) (result i32)
    (if (i32.gt_u (local.get $fd) (i32.const 2)) (then (return (i32.const 8))))
    (i64.store (local.get $to) (i64.const 2))
    (i64.store offset=8 (local.get $to) (i64.const -1))
    (i64.store offset=16 (local.get $to) (i64.const -1))
    (i32.const 0))

  ;; Standard input is at its end.
  (func (export "fd_read")
    (param $fd i32) (param $pieces i32) (param $count i32) (param $read i32) (result i32)
    (if (local.get $fd) (then (return (i32.const 8))))
    (i32.store (local.get $read) (i32.const 0))
    (i32.const 0))

  ;; Waits for the first clock among the subscriptions of 48 bytes each; others never come to anything. Without a clock there
  ;; is nothing to wait for: ENOTSUP (58).
  (func (export "poll_oneoff")
    (param $in i32) (param $out i32) (param $count i32) (param $events i32) (result i32)
    (local $wait i64) (local $least i64) (local $found i32) (local $pollable i32) (local $now i64)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (if (i32.eqz (i32.load8_u offset=8 (local.get $in)))
          (then
            (local.set $wait (i64.load offset=24 (local.get $in)))
            ;; A point in time, not a duration.
            (if (i32.and (i32.load16_u offset=40 (local.get $in)) (i32.const 1))
              (then
                (local.set $now (call $now (i32.load offset=16 (local.get $in))))
                (local.set $wait
                  (select
                    (i64.sub (local.get $wait) (local.get $now))
                    (i64.const 0)
                    (i64.gt_u (local.get $wait) (local.get $now))))))
            (if (i32.or (i32.eqz (local.get $found)) (i64.lt_u (local.get $wait) (local.get $least)))
              (then
                (local.set $least (local.get $wait))
                (local.set $found (local.get $in))))))
        (local.set $in (i32.add (local.get $in) (i32.const 48)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (if (i32.eqz (local.get $found)) (then (return (i32.const 58))))
    (if (global.get $held)
      (then
        (global.set $last (i64.add (global.get $last) (local.get $least)))
        (local.set $least (i64.const 0))))
    (if (i64.ne (local.get $least) (i64.const 0))
      (then
        (local.set $pollable (call $after (local.get $least)))
        (call $block (local.get $pollable))
        (call $forget (local.get $pollable))))
    (local.set $wait (i64.load (local.get $found)))
    (memory.fill (local.get $out) (i32.const 0) (i32.const 32))
    (i64.store (local.get $out) (local.get $wait))
    (i32.store (local.get $events) (i32.const 1))
    (i32.const 0))

  (func (export "proc_exit") (param $code i32)
    (if (global.get $held) (then unreachable))
    (call $exit (i32.ne (local.get $code) (i32.const 0)))
    unreachable)

  (func (export "sched_yield") (result i32) (i32.const 0))

  ;; No arguments, no environment.
  (func $nothing (param $count i32) (param $size i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $size) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $nothing))
  (export "environ_sizes_get" (func $nothing))
  (func $none (param i32 i32) (result i32) (i32.const 0))
  (export "args_get" (func $none))
  (export "environ_get" (func $none))

  ;; What is about files and sockets, by its parameters.
  (func $i (param i32) (result i32) (i32.const 8))
  (export "fd_close" (func $i))
  (export "fd_datasync" (func $i))
  (export "fd_sync" (func $i))
  (func $ii (param i32 i32) (result i32) (i32.const 8))
  (export "fd_fdstat_set_flags" (func $ii))
  (export "fd_filestat_get" (func $ii))
  (export "fd_prestat_get" (func $ii))
  (export "fd_renumber" (func $ii))
  (export "fd_tell" (func $ii))
  (export "sock_shutdown" (func $ii))
  (func $iI (param i32 i64) (result i32) (i32.const 8))
  (export "fd_filestat_set_size" (func $iI))
  (func $iII (param i32 i64 i64) (result i32) (i32.const 8))
  (export "fd_allocate" (func $iII))
  (export "fd_fdstat_set_rights" (func $iII))
  (func $iIIi (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (export "fd_advise" (func $iIIi))
  (export "fd_filestat_set_times" (func $iIIi))
  (func $iIii (param i32 i64 i32 i32) (result i32) (i32.const 8))
  (export "fd_seek" (func $iIii))
  (func $iii (param i32 i32 i32) (result i32) (i32.const 8))
  (export "fd_prestat_dir_name" (func $iii))
  (export "path_create_directory" (func $iii))
  (export "path_remove_directory" (func $iii))
  (export "path_unlink_file" (func $iii))
  (export "sock_accept" (func $iii))
  (func $iiiIi (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (export "fd_pread" (func $iiiIi))
  (export "fd_pwrite" (func $iiiIi))
  (export "fd_readdir" (func $iiiIi))
  (func $iiiii (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_filestat_get" (func $iiiii))
  (export "path_symlink" (func $iiiii))
  (export "sock_send" (func $iiiii))
  (func $iiiiii (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_readlink" (func $iiiiii))
  (export "path_rename" (func $iiiiii))
  (export "sock_recv" (func $iiiiii))
  (func $iiiiiii (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_link" (func $iiiiiii))
  (func $iiiiIIi (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (export "path_filestat_set_times" (func $iiiiIIi))
  (func $iiiiiIIii (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
  (export "path_open" (func $iiiiiIIii))
)
