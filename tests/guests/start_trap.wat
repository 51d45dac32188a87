;; Traps when it is started. Its `run` would succeed.
(component
  (import "piecework:handler/types@0.1.0" (instance $types
    (type $j (record
      (field "id" string) (field "job-type" string) (field "payload" string)
      (field "attempt" u32) (field "max-attempts" u32) (field "idempotency-key" string)
      (field "ordering-key" (option string)) (field "group-key" (option string)) (field "enqueued-at" string) (field "due-at" string)
      (field "parent" (option string))))
    (export "job" (type (eq $j)))
    (type $d (variant (case "retry") (case "retry-after" u32) (case "snooze" u32) (case "discard")))
    (export "disposition" (type $disposition (eq $d)))
    (type $f (record (field "message" string) (field "disposition" $disposition)))
    (export "failure" (type (eq $f)))))
  (alias export $types "job" (type $job))
  (alias export $types "failure" (type $failure))
  (core module $guest
    (memory (export "memory") 1)
    (global $top (mut i32) (i32.const 1024))
    ;; Hands out memory and takes none back; one page is enough for a job with a small payload.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
      (global.set $top (i32.add (local.get $at) (local.get 3)))
      (local.get $at))
    (func $start unreachable)
    (start $start)
    ;; The zeros at the start of the memory mean: no failure, no result.
    (func (export "run") (param i32) (result i32)
      i32.const 0))
  (core instance $guest (instantiate $guest))
  (func (export "run") (param "job" $job) (result (result (option string) (error $failure)))
    (canon lift (core func $guest "run")
      (memory (core memory $guest "memory")) (realloc (core func $guest "realloc"))))
)
